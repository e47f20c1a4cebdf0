-- wrk's side of the measurement of the response cache: like infer.lua, but some requests have contents that no earlier one
-- had.
--
-- Arguments: the file with the request's body, the length of the JSON part at its beginning, which requests are new (every
-- n-th; 0 for none), the number of the run.

local head, kept, every, run, count

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local body = file:read("*a")
  file:close()
  every, run, count = tonumber(args[3]), tonumber(args[4]), 0
  -- The last 16 bytes tell requests apart.
  head, kept = body:sub(1, -17), body
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/octet-stream"
  wrk.headers["Inference-Header-Content-Length"] = args[2]
end

function request()
  count = count + 1
  if every == 0 or count % every ~= 0 then
    return wrk.format(nil, nil, nil, kept)
  end
  return wrk.format(nil, nil, nil, head .. string.format("%06d%010d", run, count))
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    "seen requests=%d duration_us=%d p50_us=%d p99_us=%d connect=%d read=%d write=%d status=%d timeout=%d",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
