//! Waits for an idle process, by the states of its threads in Linux's `/proc`.

use std::fs;
use std::io;
use std::time::Duration;

use tokio::time::sleep;

/// The polling interval.
const INTERVAL: Duration = Duration::from_millis(1);

/// Waits until all threads of a process sleep.
pub async fn wait_for_rest(pid: u32) -> io::Result<()> {
    // Two consecutive checks: a thread may wake another that was already checked.
    let mut seen = 0;
    while seen < 2 {
        seen = if sleeps(pid)? { seen + 1 } else { 0 };
        sleep(INTERVAL).await;
    }
    Ok(())
}

fn sleeps(pid: u32) -> io::Result<bool> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // The state follows the name, which may contain parentheses.
        let stat = fs::read_to_string(thread?.path().join("stat"));
        if stat.is_ok_and(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with('S'))) {
            return Ok(false);
        }
    }
    Ok(true)
}
