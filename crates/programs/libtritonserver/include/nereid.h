/* What libtritonserver.so offers beside Triton's interface. Made from crates/triton/triton-sys by its tests. Not to be edited.
 * docs/embedding.md says more. */
#pragma once

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

TRITONSERVER_Error* NEREID_ServerOptionsNew(TRITONSERVER_ServerOptions** options);
TRITONSERVER_Error* NEREID_ServerOptionsSet(TRITONSERVER_ServerOptions* options, char const* name, char const* value);
TRITONSERVER_Error* NEREID_ServerOptionsSetListen(TRITONSERVER_ServerOptions* options, bool listen);
TRITONSERVER_Error* NEREID_ServerAddresses(TRITONSERVER_Server* server, TRITONSERVER_Message** addresses);
int NEREID_Command(void);

#ifdef __cplusplus
}
#endif
