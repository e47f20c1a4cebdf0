//! `nereid keys`: makes, lists and revokes the API keys of an access policy.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nereid_access::{Expiry, KeyFile, Policy, key_id};
use nereid_options::KeysCommand;

/// Runs a subcommand.
pub(crate) fn run(command: &KeysCommand) -> ExitCode {
    let outcome = match command {
        KeysCommand::Add { policy, principal, expires, note } => add(policy, principal, *expires, note),
        KeysCommand::List { policy } => list(policy),
        KeysCommand::Revoke { policy, keys } => revoke(policy, keys),
    };
    match outcome {
        Ok(text) => {
            // The reader may close the pipe early, as `head` does.
            let _ = writeln!(std::io::stdout(), "{}", text.trim());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nereid keys: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the new key, and describes it on standard error, so that a script reads the key alone.
fn add(path: &Path, principal: &str, expiry: Expiry, note: &str) -> Result<String, String> {
    let policy = read(path)?;
    policy.find(principal)?;
    let file = file_of(path, &policy)?;
    let key = KeyFile::add(&file, principal, expiry, note).map_err(|error| error.to_string())?;
    let until = match expiry {
        Expiry::On(_) => format!("valid through {expiry} (UTC)"),
        Expiry::Never => "valid until it is revoked".to_owned(),
    };
    eprintln!("key {} of '{principal}' in {}, {until}; it is shown only now:", key.id_text(), file.display());
    Ok(key.text)
}

fn list(path: &Path) -> Result<String, String> {
    let file = file_of(path, &read(path)?)?;
    let keys = KeyFile::read(&file).map_err(|error| error.to_string())?;
    let rows: Vec<_> = keys
        .entries()
        .into_iter()
        .map(|key| {
            let until =
                if key.is_expired() { format!("{}, expired", key.expiry) } else { key.expiry.to_string() };
            [key.id_text(), key.principal.to_string(), until, key.created.clone(), key.note.clone()]
        })
        .collect();
    Ok(nereid_check::draw_table(["Key", "Principal", "Last day", "Created", "Note"], &rows))
}

fn revoke(path: &Path, keys: &[String]) -> Result<String, String> {
    let file = file_of(path, &read(path)?)?;
    let mut revoked = String::new();
    for key in keys {
        let id = key_id(key).unwrap_or_else(|| key.clone());
        let entry = KeyFile::revoke(&file, &id).map_err(|error| error.to_string())?;
        revoked.push_str(&format!("revoked key {id} of '{}'\n", entry.principal));
    }
    Ok(revoked)
}

fn read(path: &Path) -> Result<Policy, String> {
    Policy::read(path).map_err(|error| error.to_string())
}

/// The file of keys of a policy.
fn file_of(path: &Path, policy: &Policy) -> Result<PathBuf, String> {
    let missing = || format!("{} names no file of keys; add a line such as keys = \"keys\"", path.display());
    policy.keys().map(Path::to_owned).ok_or_else(missing)
}
