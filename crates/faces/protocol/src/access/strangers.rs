//! Rules for unidentified clients of other machines: no loads with files of their own, no shared memory.
//!
//! Such loads can run code as the server, and shared memory can reach every process on the server's machine. Clients of a
//! proxy that runs on this machine pass for local ones.

use super::{Action, ApiGroup, Denied, Identity};

/// Checks an action of a client of another machine.
///
/// # Errors
/// The action is refused.
pub(super) fn check(caller: &Identity, action: Action) -> Result<(), Denied> {
    let (group, subject) = match action {
        Action::LoadFiles => {
            (ApiGroup::ModelRepository, "a load that brings files or a configuration, which may run code, is")
        }
        Action::ChangeRegions | Action::UseRegions => (ApiGroup::SharedMemory, "shared memory is"),
        _ => return Ok(()),
    };
    if caller.principal.is_some() || caller.has_opened(group) {
        return Ok(());
    }
    Err(Denied::Forbidden(format!(
        "{subject} for clients on the server's machine; to let others in, start the server with --trust-network, or with \
         an access policy (--access)"
    )))
}
