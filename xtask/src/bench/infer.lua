-- wrk's side of the HTTP benchmark: posts one prepared inference request over and over and, at the end, prints
-- what was seen on one line that a program can read.
--
-- Arguments: the file with the request's body, the length of the JSON part at its beginning.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = "application/octet-stream"
  wrk.headers["Inference-Header-Content-Length"] = args[2]
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    "seen requests=%d duration_us=%d p50_us=%d p99_us=%d connect=%d read=%d write=%d status=%d timeout=%d",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
