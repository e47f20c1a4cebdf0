//! `nereid access`: explains an access policy.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use nereid_access::{ANONYMOUS, GrantingRole, KeyFile, Policy, explain, overview};
use nereid_options::AccessCommand;

/// Runs a subcommand. Fails if the policy cannot be used.
pub(crate) fn run(command: &AccessCommand) -> ExitCode {
    let AccessCommand::Check { policy, principal, model, namespace } = command;
    match check(policy, principal.as_deref().zip(model.as_deref()), namespace.as_deref()) {
        Ok(text) => {
            // The reader may close the pipe early, as `head` does.
            let _ = writeln!(std::io::stdout(), "{}", text.trim());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nereid access: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(path: &Path, subject: Option<(&str, &str)>, namespace: Option<&str>) -> Result<String, String> {
    let policy = Policy::read(path).map_err(|error| error.to_string())?;
    policy.check_token_keys()?;
    let keys =
        policy.keys().map_or(Ok(KeyFile::default()), KeyFile::read).map_err(|error| error.to_string())?;
    let Some((name, model)) = subject else { return Ok(overview(&policy, &keys)) };
    let principal = if name == ANONYMOUS { policy.anonymous() } else { policy.find(name)? };
    let rows: Vec<_> = explain(&policy, principal, model, namespace)
        .into_iter()
        .map(|reason| {
            let roles = reason.roles.iter().map(|GrantingRole { name, models, namespaces }| {
                let namespaces = match namespaces.as_slice() {
                    [] => String::new(),
                    namespaces => format!(" in '{}'", namespaces.join("', '")),
                };
                format!("role '{name}' on '{models}'{namespaces}")
            });
            let roles: Vec<_> = roles.collect();
            let (is_granted, why) = match roles.is_empty() {
                true => ("no", format!("no role of '{name}' grants it")),
                false => ("yes", roles.join(", ")),
            };
            [reason.right.name().to_owned(), is_granted.to_owned(), why]
        })
        .collect();
    let table = nereid_check::draw_table(["Right", "Granted", "Why"], &rows);
    Ok(match model.split_once(':') {
        Some((base, adapter)) => format!(
            "{}\nIf this is the adapter '{adapter}' of model '{base}', 'infer' and 'read' on '{base}' cover it, too.",
            table.trim_end()
        ),
        None => table,
    })
}
