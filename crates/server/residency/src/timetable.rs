//! The timetable of scheduled loads. The time is an argument, and may jump.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::schedule::Schedule;

/// The schedules of models, and the next load of each.
#[derive(Debug, Default)]
pub(crate) struct Timetable {
    models: BTreeMap<String, Entry>,
    /// The time of the last look.
    last: Timestamp,
}

#[derive(Debug)]
struct Entry {
    schedule: Schedule,
    /// When there is something to do. `None` for never.
    next: Option<Timestamp>,
}

impl Timetable {
    /// Sets the schedule of a model, or removes it. A model whose time it is now is due at once. Whether anything changed.
    pub(crate) fn set(&mut self, name: &str, schedule: Option<Schedule>, now: Timestamp) -> bool {
        let Some(schedule) = schedule else { return self.models.remove(name).is_some() };
        if self.models.get(name).is_some_and(|entry| entry.schedule == schedule) {
            return false;
        }
        let next = if schedule.is_on(now) { Some(now) } else { schedule.next(now) };
        self.models.insert(name.to_owned(), Entry { schedule, next });
        true
    }

    /// Returns the models to load now. A time that passed unseen, as the machine slept or the clock was put forward, counts while the
    /// model would still stay.
    pub(crate) fn due(&mut self, now: Timestamp) -> Vec<String> {
        let is_back = now < self.last;
        self.last = now;
        let mut due = Vec::new();
        for (name, Entry { schedule, next }) in &mut self.models {
            if next.is_some_and(|next| next <= now) {
                *next = schedule.next(now);
                due.extend(schedule.is_on(now).then(|| name.clone()));
            } else if is_back {
                *next = schedule.next(now);
            }
        }
        due
    }

    /// The load of a model failed, or could not begin: it is due again after a pause.
    pub(crate) fn retry(&mut self, name: &str, now: Timestamp, pause: Duration) {
        if let Some(Entry { next, .. }) = self.models.get_mut(name)
            && let Ok(retry) = now.checked_add(pause)
        {
            *next = Some(next.map_or(retry, |next| next.min(retry)));
        }
    }

    /// Whether the schedule keeps a model in memory.
    pub(crate) fn keeps(&self, name: &str, now: Timestamp) -> bool {
        self.models.get(name).is_some_and(|entry| entry.schedule.is_on(now))
    }

    /// When the model is due next.
    #[cfg(test)]
    pub(crate) fn due_at(&self, name: &str) -> Option<Timestamp> {
        self.models.get(name)?.next
    }

    /// When the model is loaded next, for people.
    pub(crate) fn next(&self, name: &str, now: Timestamp) -> Option<String> {
        let schedule = &self.models.get(name)?.schedule;
        Some(schedule.describe(schedule.next(now)?))
    }
}

#[cfg(test)]
mod tests;
