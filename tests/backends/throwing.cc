/* A backend in C++ whose functions throw, which they must not: the one that the model's parameter "throws" names.
 *
 * Compiled by the tests: c++ -shared -fPIC throwing.cc -o libtriton_throwing.so
 */
#include <stdexcept>
#include <string>

extern "C" {
#include "triton.h"
}

static void maybe_throw(TRITONBACKEND_Model* model, const std::string& function)
{
    TRITONSERVER_Message* config = nullptr;
    const char* base = nullptr;
    size_t size = 0;
    TRITONBACKEND_ModelConfig(model, 1, &config);
    TRITONSERVER_MessageSerializeToJson(config, &base, &size);
    const std::string json(base, size);
    TRITONSERVER_MessageDelete(config);
    if (json.find("\"throws\":{\"string_value\":\"" + function + "\"}") != std::string::npos)
        throw std::runtime_error("throwing: " + function + " throws on purpose");
}

static TRITONBACKEND_Model* model_of(TRITONBACKEND_ModelInstance* instance)
{
    TRITONBACKEND_Model* model = nullptr;
    TRITONBACKEND_ModelInstanceModel(instance, &model);
    return model;
}

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
    maybe_throw(model, "ModelInitialize");
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
    maybe_throw(model_of(instance), "ModelInstanceInitialize");
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
    maybe_throw(model_of(instance), "ModelInstanceFinalize");
    return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
    maybe_throw(model_of(instance), "ModelInstanceExecute");
    for (uint32_t i = 0; i < count; ++i) {
        TRITONBACKEND_Response* response = nullptr;
        TRITONBACKEND_ResponseNew(&response, requests[i]);
        TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr);
        TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL);
    }
    return nullptr;
}
}
