/* Plugins of several kinds in one source: which one it is, a definition says. */

#include <stddef.h>
#include <stdint.h>

#if defined(AGENT)
/* The program that loads the agent has it. */
void *TRITONREPOAGENT_ApiVersion(uint32_t *major, uint32_t *minor);

void *TRITONREPOAGENT_ModelAction(void *agent, void *model, uint32_t action) {
    uint32_t major = 0, minor = 0;
    (void)agent, (void)model;
    TRITONREPOAGENT_ApiVersion(&major, &minor);
    return (void *)(uintptr_t)(1000 * major + 10 * minor + action);
}
#elif defined(NEEDS_OTHER)
int other(void);

int needs_other(void) {
    return other();
}
#elif defined(OTHER)
int other(void) {
    return 1;
}
#endif
