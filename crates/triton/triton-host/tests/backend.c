/* A backend for the tests. What a request's id says is what it does with the request. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void* Handle;
Handle TRITONSERVER_ErrorNew(int code, const char* message);
void TRITONSERVER_ErrorDelete(Handle error);
const char* TRITONSERVER_ErrorMessage(Handle error);
Handle TRITONBACKEND_RequestId(Handle request, const char** id);
Handle TRITONBACKEND_RequestInputByIndex(Handle request, uint32_t index, Handle* input);
Handle TRITONBACKEND_RequestRelease(Handle request, uint32_t flags);
Handle TRITONBACKEND_InputProperties(
    Handle input, const char** name, int* type, const int64_t** shape, uint32_t* dims, uint64_t* size, uint32_t* buffers);
Handle TRITONBACKEND_InputBuffer(
    Handle input, uint32_t index, const void** buffer, uint64_t* size, int* memory, int64_t* device);
Handle TRITONBACKEND_ResponseFactoryNew(Handle* factory, Handle request);
Handle TRITONBACKEND_ResponseFactoryDelete(Handle factory);
Handle TRITONBACKEND_ResponseNew(Handle* response, Handle request);
Handle TRITONBACKEND_ResponseNewFromFactory(Handle* response, Handle factory);
Handle TRITONBACKEND_ResponseDelete(Handle response);
Handle TRITONBACKEND_ResponseOutput(
    Handle response, Handle* output, const char* name, int type, const int64_t* shape, uint32_t dims);
Handle TRITONBACKEND_OutputBuffer(Handle output, void** buffer, uint64_t size, int* memory, int64_t* device);
Handle TRITONBACKEND_ResponseSetStringParameter(Handle response, const char* name, const char* value);
Handle TRITONBACKEND_ResponseSend(Handle response, uint32_t flags, Handle error);

#ifndef LACKS_EXECUTE
static const char* fault = "";

/* Notes the first error that a call gave. */
static void note(Handle error)
{
  static char text[512];
  if (error == NULL) {
    return;
  }
  if (fault[0] == 0) {
    strncpy(text, TRITONSERVER_ErrorMessage(error), sizeof(text) - 1);
    fault = text;
  }
  TRITONSERVER_ErrorDelete(error);
}
#endif

Handle TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    Handle attributes, int kind, uint64_t count, const uint64_t* devices, uint64_t device_count);
Handle TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(Handle attributes, bool enabled);

#ifdef PREFERS_THREE
Handle TRITONBACKEND_GetBackendAttribute(Handle backend, Handle attributes)
{
  Handle error = TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
  return error != NULL ? error : TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, 1, 3, NULL, 0);
}
#endif

Handle TRITONBACKEND_ModelInitialize(Handle model)
{
#ifdef REFUSES_MODELS
  return TRITONSERVER_ErrorNew(5, "told to refuse models");
#else
  return NULL;
#endif
}

#ifndef LACKS_EXECUTE
/* Gives the input back, with the fault that was noted. */
static void answer(Handle response, Handle request)
{
  Handle input = NULL, output = NULL;
  const int64_t* shape = NULL;
  const void* contents = NULL;
  void* buffer = NULL;
  uint32_t dims = 0, buffers = 0;
  uint64_t size = 0, piece = 0;
  int type = 0, memory = 0;
  int64_t device = 0;
  note(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  note(TRITONBACKEND_InputProperties(input, NULL, &type, &shape, &dims, &size, &buffers));
  note(TRITONBACKEND_ResponseOutput(response, &output, "OUT", type, shape, dims));
  note(TRITONBACKEND_OutputBuffer(output, &buffer, size, &memory, &device));
  for (uint32_t index = 0; index < buffers; ++index) {
    note(TRITONBACKEND_InputBuffer(input, index, &contents, &piece, &memory, &device));
    memcpy(buffer, contents, piece);
    buffer = (char*)buffer + piece;
  }
  note(TRITONBACKEND_ResponseSetStringParameter(response, "fault", fault));
}

Handle TRITONBACKEND_ModelInstanceExecute(Handle instance, Handle* requests, uint32_t count)
{
  Handle response = NULL, factory = NULL;
  const char* id = NULL;
  Handle request = requests[0];
  fault = "";
  /* There is nothing to delete, and that is no fault. */
  note(TRITONBACKEND_ResponseFactoryDelete(NULL));
  note(TRITONBACKEND_RequestId(request, &id));
  if (strcmp(id, "fail") == 0) {
    return TRITONSERVER_ErrorNew(3, "told to fail");
  }
  if (strcmp(id, "release") == 0) {
    note(TRITONBACKEND_RequestRelease(request, 1));
    return NULL;
  }
  if (strcmp(id, "null") == 0) {
    note(TRITONBACKEND_ResponseNew(NULL, request));
  }
  if (strcmp(id, "kind") == 0) {
    note(TRITONBACKEND_ResponseFactoryDelete(request));
  }
  if (strcmp(id, "output") == 0) {
    Handle output = NULL;
    int64_t shape = 1;
    note(TRITONBACKEND_ResponseNew(&response, request));
    note(TRITONBACKEND_ResponseOutput(response, &output, "NONE", 8, &shape, 1));
    response = NULL;
  }
  note(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  note(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  if (strcmp(id, "twice") == 0) {
    Handle second = NULL;
    note(TRITONBACKEND_ResponseNewFromFactory(&second, factory));
    note(TRITONBACKEND_ResponseSend(second, 2, NULL));
  }
  if (strcmp(id, "gone") == 0) {
    Handle second = NULL;
    note(TRITONBACKEND_ResponseNewFromFactory(&second, factory));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(second, 2, NULL));
    note(TRITONBACKEND_ResponseDelete(second));
  }
  answer(response, request);
  if (strcmp(id, "late") == 0) {
    note(TRITONBACKEND_RequestRelease(request, 1));
    note(TRITONBACKEND_RequestRelease(request, 1));
    note(TRITONBACKEND_ResponseSetStringParameter(response, "fault", fault));
    note(TRITONBACKEND_ResponseSend(response, 1, NULL));
  } else {
    note(TRITONBACKEND_ResponseSend(response, 1, NULL));
    note(TRITONBACKEND_ResponseSend(response, 1, NULL));
    note(TRITONBACKEND_RequestRelease(request, 1));
  }
  note(TRITONBACKEND_ResponseFactoryDelete(factory));
  return NULL;
}
#endif
