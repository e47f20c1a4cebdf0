/* What needs no request: types, errors, messages, parameters, buffer attributes, the log, metrics, the server. */

static void exercise_types(Report* r)
{
    for (unsigned i = 0; i <= 15; ++i)
        note(r, "data type %u: %s of %u bytes", i, or_null(TRITONSERVER_DataTypeString(i)),
             TRITONSERVER_DataTypeByteSize(i));
    const char* names[] = {"FP32", "BYTES", "BF16", "fp32", "", "NONE"};
    for (size_t i = 0; i < 6; ++i)
        note(r, "data type '%s': %u", names[i], TRITONSERVER_StringToDataType(names[i]));
    for (unsigned i = 0; i <= 3; ++i)
        note(r, "memory type %u: %s", i, or_null(TRITONSERVER_MemoryTypeString(i)));
    for (unsigned i = 0; i <= 5; ++i)
        note(r, "parameter type %u: %s", i, or_null(TRITONSERVER_ParameterTypeString(i)));
    for (unsigned i = 0; i <= 4; ++i)
        note(r, "instance kind %u: %s", i, or_null(TRITONSERVER_InstanceGroupKindString(i)));
}

static void exercise_errors(Report* r)
{
    for (unsigned code = 0; code <= 8; ++code) {
        TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(code, "text");
        /* Not every server has a name for the youngest code. */
        const char* name = code == TRITONSERVER_ERROR_CANCELLED ? "" : TRITONSERVER_ErrorCodeString(error);
        note(r, "error %u: code %u %s '%s'", code, TRITONSERVER_ErrorCode(error), or_null(name),
             or_null(TRITONSERVER_ErrorMessage(error)));
        TRITONSERVER_ErrorDelete(error);
    }
}

static void exercise_messages(Report* r)
{
    const char json[] = "{\"a\": [1, 2.5, \"b\"], \"c\": null}";
    TRITONSERVER_Message* message = NULL;
    if (CALL(r, "message of JSON", TRITONSERVER_MessageNewFromSerializedJson(&message, json, strlen(json)))) {
        char* text = message_text(message);
        note(r, "message: %s", text);
        free(text);
        TRITONSERVER_MessageDelete(message);
    }
}

static void exercise_parameters(Report* r)
{
    int64_t whole = 5;
    bool truth = true;
    double real = 0.5;
    TRITONSERVER_Parameter* all[] = {
        TRITONSERVER_ParameterNew("s", TRITONSERVER_PARAMETER_STRING, "text"),
        TRITONSERVER_ParameterNew("i", TRITONSERVER_PARAMETER_INT, &whole),
        TRITONSERVER_ParameterNew("b", TRITONSERVER_PARAMETER_BOOL, &truth),
        TRITONSERVER_ParameterNew("d", TRITONSERVER_PARAMETER_DOUBLE, &real),
        TRITONSERVER_ParameterBytesNew("y", "bytes", 5),
        TRITONSERVER_ParameterNew("n", 77, "text"),
    };
    for (size_t i = 0; i < 6; ++i) {
        note(r, "parameter of kind %zu: %s", i, all[i] == NULL ? "(null)" : "there");
        if (all[i] != NULL) TRITONSERVER_ParameterDelete(all[i]);
    }
}

static void exercise_buffer_attributes(Report* r)
{
    TRITONSERVER_BufferAttributes* attributes = NULL;
    TRITONSERVER_MemoryType kind = 99;
    int64_t id = -7;
    size_t size = 99;
    void* handle = &handle;
    CALL(r, "TRITONSERVER_BufferAttributesNew", TRITONSERVER_BufferAttributesNew(&attributes));
    CALL(r, "TRITONSERVER_BufferAttributesMemoryType", TRITONSERVER_BufferAttributesMemoryType(attributes, &kind));
    CALL(r, "TRITONSERVER_BufferAttributesMemoryTypeId", TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &id));
    CALL(r, "TRITONSERVER_BufferAttributesByteSize", TRITONSERVER_BufferAttributesByteSize(attributes, &size));
    CALL(r, "TRITONSERVER_BufferAttributesCudaIpcHandle",
         TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle));
    /* What new attributes hold is open: a server may leave them as they are. */
    CALL(r, "TRITONSERVER_BufferAttributesSetMemoryType",
         TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_CPU_PINNED));
    CALL(r, "TRITONSERVER_BufferAttributesSetMemoryTypeId",
         TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 3));
    CALL(r, "TRITONSERVER_BufferAttributesSetByteSize", TRITONSERVER_BufferAttributesSetByteSize(attributes, 12));
    char ipc[64] = "handle";
    CALL(r, "TRITONSERVER_BufferAttributesSetCudaIpcHandle",
         TRITONSERVER_BufferAttributesSetCudaIpcHandle(attributes, ipc));
    TRITONSERVER_BufferAttributesMemoryType(attributes, &kind);
    TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &id);
    TRITONSERVER_BufferAttributesByteSize(attributes, &size);
    TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle);
    note(r, "set attributes: memory %u %lld, %zu bytes, handle %s", kind, (long long)id, size,
         handle == NULL ? "(null)" : (char*)handle);
    CALL(r, "TRITONSERVER_BufferAttributesDelete", TRITONSERVER_BufferAttributesDelete(attributes));
}

static void exercise_log(Report* r)
{
    for (unsigned level = 0; level <= 3; ++level)
        note(r, "log level %u: %d", level, TRITONSERVER_LogIsEnabled(level));
    CALL(r, "TRITONSERVER_LogMessage",
         TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, "folder/exercise.c", 42, "exercise: a line of the backend"));
    CALL(r, "a log level that is none", TRITONSERVER_LogMessage(77, "exercise.c", 42, "exercise: no such level"));
}

static void exercise_metrics(Report* r)
{
    TRITONSERVER_MetricFamily* counters = NULL;
    TRITONSERVER_MetricFamily* gauges = NULL;
    TRITONSERVER_MetricFamily* histograms = NULL;
    TRITONSERVER_MetricFamily* twin = NULL;
    CALL(r, "family of counters", TRITONSERVER_MetricFamilyNew(&counters, TRITONSERVER_METRIC_KIND_COUNTER,
                                                              "exercise_counter", "counts"));
    CALL(r, "family of gauges",
         TRITONSERVER_MetricFamilyNew(&gauges, TRITONSERVER_METRIC_KIND_GAUGE, "exercise_gauge", "measures"));
    CALL(r, "family of histograms", TRITONSERVER_MetricFamilyNew(&histograms, TRITONSERVER_METRIC_KIND_HISTOGRAM,
                                                                 "exercise_histogram", "sorts"));
    CALL(r, "family of a kind that is none", TRITONSERVER_MetricFamilyNew(&twin, 77, "exercise_none", "none"));
    TRITONSERVER_MetricKind kind = 99;
    CALL(r, "TRITONSERVER_GetMetricFamilyKind", TRITONSERVER_GetMetricFamilyKind(gauges, &kind));
    note(r, "family's kind: %u", kind);
    TRITONSERVER_Parameter* labels[] = {TRITONSERVER_ParameterNew("who", TRITONSERVER_PARAMETER_STRING, "exercise")};
    const TRITONSERVER_Parameter* const_labels[] = {labels[0]};
    TRITONSERVER_Metric* counter = NULL;
    TRITONSERVER_Metric* gauge = NULL;
    TRITONSERVER_Metric* histogram = NULL;
    TRITONSERVER_Metric* refused = NULL;
    CALL(r, "counter", TRITONSERVER_MetricNew(&counter, counters, (void*)const_labels, 1));
    CALL(r, "gauge without labels", TRITONSERVER_MetricNew(&gauge, gauges, NULL, 0));
    CALL(r, "histogram without buckets", TRITONSERVER_MetricNew(&refused, histograms, NULL, 0));
    TRITONSERVER_MetricArgs* args = NULL;
    double buckets[] = {0.1, 1, 10};
    CALL(r, "TRITONSERVER_MetricArgsNew", TRITONSERVER_MetricArgsNew(&args));
    CALL(r, "TRITONSERVER_MetricArgsSetHistogram", TRITONSERVER_MetricArgsSetHistogram(args, buckets, 3));
    CALL(r, "histogram", TRITONSERVER_MetricNewWithArgs(&histogram, histograms, NULL, 0, args));
    CALL(r, "TRITONSERVER_MetricArgsDelete", TRITONSERVER_MetricArgsDelete(args));
    CALL(r, "TRITONSERVER_GetMetricKind", TRITONSERVER_GetMetricKind(histogram, &kind));
    note(r, "metric's kind: %u", kind);
    double value = -1;
    CALL(r, "counter + 2", TRITONSERVER_MetricIncrement(counter, 2));
    CALL(r, "counter - 1", TRITONSERVER_MetricIncrement(counter, -1));
    CALL(r, "counter = 5", TRITONSERVER_MetricSet(counter, 5));
    CALL(r, "counter observes", TRITONSERVER_MetricObserve(counter, 5));
    CALL(r, "counter's value", TRITONSERVER_MetricValue(counter, &value));
    note(r, "counter: %g", value);
    CALL(r, "gauge = 5", TRITONSERVER_MetricSet(gauge, 5));
    CALL(r, "gauge - 7", TRITONSERVER_MetricIncrement(gauge, -7));
    CALL(r, "gauge observes", TRITONSERVER_MetricObserve(gauge, 5));
    CALL(r, "gauge's value", TRITONSERVER_MetricValue(gauge, &value));
    note(r, "gauge: %g", value);
    CALL(r, "histogram observes", TRITONSERVER_MetricObserve(histogram, 0.5));
    CALL(r, "histogram + 1", TRITONSERVER_MetricIncrement(histogram, 1));
    CALL(r, "histogram = 1", TRITONSERVER_MetricSet(histogram, 1));
    CALL(r, "histogram's value", TRITONSERVER_MetricValue(histogram, &value));
    CALL(r, "a family that has metrics is deleted", TRITONSERVER_MetricFamilyDelete(counters));
    CALL(r, "TRITONSERVER_MetricDelete", TRITONSERVER_MetricDelete(counter));
    TRITONSERVER_MetricDelete(gauge);
    TRITONSERVER_MetricDelete(histogram);
    CALL(r, "TRITONSERVER_MetricFamilyDelete", TRITONSERVER_MetricFamilyDelete(counters));
    TRITONSERVER_MetricFamilyDelete(gauges);
    TRITONSERVER_MetricFamilyDelete(histograms);
    TRITONSERVER_ParameterDelete(labels[0]);
}

static void note_document(Report* r, const char* what, TRITONSERVER_Error* error, TRITONSERVER_Message** message,
                          const char* part)
{
    if (!outcome(r, what, error)) return;
    note(r, "%s has %s: %d", what, part, contains(*message, part));
    TRITONSERVER_MessageDelete(*message);
}

static void exercise_server(Report* r, TRITONSERVER_Server* server)
{
    bool yes = false;
    CALL(r, "TRITONSERVER_ServerIsLive", TRITONSERVER_ServerIsLive(server, &yes));
    note(r, "live: %d", yes);
    CALL(r, "TRITONSERVER_ServerIsReady", TRITONSERVER_ServerIsReady(server, &yes));
    note(r, "ready: %d", yes);
    CALL(r, "TRITONSERVER_ServerModelIsReady", TRITONSERVER_ServerModelIsReady(server, "callee", -1, &yes));
    note(r, "callee is ready: %d", yes);
    CALL(r, "an unknown model is ready", TRITONSERVER_ServerModelIsReady(server, "nobody", -1, &yes));
    note(r, "nobody is ready: %d", yes);
    uint32_t flags = 99;
    void* more = NULL;
    CALL(r, "TRITONSERVER_ServerModelBatchProperties",
         TRITONSERVER_ServerModelBatchProperties(server, "callee", -1, &flags, &more));
    note(r, "batch flags: %u", flags);
    CALL(r, "TRITONSERVER_ServerModelTransactionProperties",
         TRITONSERVER_ServerModelTransactionProperties(server, "callee", -1, &flags, &more));
    note(r, "transaction flags: %u", flags);
    TRITONSERVER_Message* message = NULL;
    note_document(r, "server metadata", TRITONSERVER_ServerMetadata(server, &message), &message, "\"extensions\":[");
    note_document(r, "model metadata", TRITONSERVER_ServerModelMetadata(server, "callee", 1, &message), &message,
                  "\"name\":\"callee\"");
    note_document(r, "unknown model's metadata", TRITONSERVER_ServerModelMetadata(server, "nobody", -1, &message),
                  &message, "");
    note_document(r, "model statistics", TRITONSERVER_ServerModelStatistics(server, "callee", -1, &message), &message,
                  "\"inference_count\":");
    note_document(r, "model config", TRITONSERVER_ServerModelConfig(server, "callee", -1, 1, &message), &message,
                  "\"mode\":{\"string_value\":\"callee\"}");
    note_document(r, "model config of another form", TRITONSERVER_ServerModelConfig(server, "callee", -1, 2, &message),
                  &message, "");
    note_document(r, "model index", TRITONSERVER_ServerModelIndex(server, 0, &message), &message,
                  "\"name\":\"callee\"");
    TRITONSERVER_Metrics* metrics = NULL;
    if (CALL(r, "TRITONSERVER_ServerMetrics", TRITONSERVER_ServerMetrics(server, &metrics))) {
        const char* base = NULL;
        size_t size = 0;
        CALL(r, "TRITONSERVER_MetricsFormatted",
             TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &size));
        CALL(r, "metrics in a form that is none", TRITONSERVER_MetricsFormatted(metrics, 77, &base, &size));
        CALL(r, "TRITONSERVER_MetricsDelete", TRITONSERVER_MetricsDelete(metrics));
    }
    CALL(r, "load without model control", TRITONSERVER_ServerLoadModel(server, "callee"));
    CALL(r, "unload without model control", TRITONSERVER_ServerUnloadModel(server, "callee"));
}
