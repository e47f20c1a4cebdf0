//! The tasks in progress of one owner, which can be closed and waited for.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::task::Task;

/// Tasks by number, until they are done.
#[derive(Default)]
pub struct TaskGroup {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    tasks: HashMap<u64, Arc<Task>>,
    next: u64,
    closed: bool,
}

impl TaskGroup {
    /// Starts a task for `value` on the calling thread, and returns its number; returns the value if the group is closed.
    pub fn spawn<T, F>(self: &Arc<Self>, value: T, future: impl FnOnce(T) -> F) -> Result<u64, T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut state = self.lock();
        if state.closed {
            return Err(value);
        }
        let number = state.next;
        state.next += 1;
        let member = Member { group: Arc::clone(self), number };
        let future = future(value);
        let task = Task::new(async move {
            // In this order also when it panics: who waits for the group finds everything done.
            let _member = member;
            future.await;
        });
        state.tasks.insert(number, Arc::clone(&task));
        drop(state);
        task.run();
        Ok(number)
    }

    /// Wakes a task, if it is not done.
    pub fn wake(&self, number: u64) {
        let task = self.lock().tasks.get(&number).cloned();
        if let Some(task) = task {
            task.run();
        }
    }

    /// Starts no further task.
    pub fn close(&self) {
        self.lock().closed = true;
        self.idle.notify_all();
    }

    /// Whether the group starts no further task.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Wakes all tasks.
    pub fn wake_all(&self) {
        let tasks: Vec<_> = self.lock().tasks.values().cloned().collect();
        for task in tasks {
            task.run();
        }
    }

    /// Waits until it is closed and every task is done.
    pub fn wait_until_done(&self) {
        let mut state = self.lock();
        while !state.closed || !state.tasks.is_empty() {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many tasks are in progress.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment or one change of the map, so a panic leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropped when its task is done, however it ended.
struct Member {
    group: Arc<TaskGroup>,
    number: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        let task = state.tasks.remove(&self.number);
        let idle = state.closed && state.tasks.is_empty();
        drop(state);
        drop(task);
        if idle {
            self.group.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::thread;

    use super::*;

    #[test]
    fn a_closed_group_gives_the_value_back() {
        let group = Arc::new(TaskGroup::default());
        assert_eq!(group.spawn("first", |_| ready(())), Ok(0));
        assert_eq!(group.len(), 0);
        group.close();
        assert_eq!(group.spawn("second", |_| pending()), Err("second"));
        group.wait_until_done();
    }

    #[test]
    fn a_group_is_done_when_its_last_task_is_also_if_that_panics() {
        let group = Arc::new(TaskGroup::default());
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        group.spawn((), |()| async { panic!("on purpose") }).unwrap();
        group.spawn((), |()| async { released.await.unwrap_or_default() }).unwrap();
        assert_eq!(group.len(), 1);
        group.close();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| group.wait_until_done());
            assert!(!waiting.is_finished());
            release.send(()).unwrap();
        });
        assert_eq!(group.len(), 0);
    }
}
