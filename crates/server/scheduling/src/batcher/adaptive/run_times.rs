//! How long a model takes to execute a batch, learned by the size of the batch.
//!
//! Each size has an average of its own. All of them are multiplied by one factor, the model's speed of late, so that a model that
//! slows down at one size is expected to be slower at all others too. The speed is the median of three runs: a single run that
//! takes much longer changes nothing.

use std::cmp::Ordering;

/// The first runs are not counted: libraries allocate, compile and warm up in them.
pub(super) const COLD: u64 = 8;

/// Runs after which the times of all sizes are computed again. A changed speed counts at once.
const REDRAWN: u64 = 4;

/// The runs that make an average.
const AVERAGED: f64 = 32.0;

/// Where only one size was seen: how much each further item adds, of the mean time of an item.
const ASSUMED_SLOPE: f64 = 0.5;

/// The greatest ratio of a run's time to the expected one that counts as a deviation.
const GREATEST_RATIO: f64 = 4.0;

/// The shortest time of a run, in seconds.
const SHORTEST: f64 = 1e-9;

/// Learned times of runs, in seconds.
pub(super) struct RunTimes {
    /// The sizes that have an average: all up to 8, then four for each doubling, and the greatest batch.
    sizes: Vec<usize>,
    /// The averages at speed 1, and the runs that each was made of.
    known: Vec<Option<(f64, f64)>>,
    /// The known averages in order, none less than the one before.
    points: Vec<(f64, f64)>,
    /// The time of each size at speed 1; empty before the first run that counted.
    curve: Vec<f64>,
    /// The factor by which runs take longer than the averages.
    speed: f64,
    /// The factors of the last three runs.
    recent: [f64; 3],
    runs: u64,
    /// The mean deviation of a run from the expected time, as a fraction of it.
    deviation: f64,
}

impl RunTimes {
    /// Nothing is known of batches up to `max_size`.
    pub(super) fn new(max_size: usize) -> Self {
        let mut sizes: Vec<usize> = Vec::new();
        while sizes.last().is_none_or(|&last| last < max_size) {
            let last = sizes.last().copied().unwrap_or(0);
            // A step of a fifth makes nearly four sizes for each doubling.
            sizes.push((last + (last / 5).max(1)).min(max_size.max(1)));
        }
        let known = vec![None; sizes.len()];
        Self {
            sizes,
            known,
            points: Vec::new(),
            curve: Vec::new(),
            speed: 1.0,
            recent: [1.0; 3],
            runs: 0,
            deviation: 0.1,
        }
    }

    /// Whether any time is known.
    pub(super) fn is_known(&self) -> bool {
        !self.curve.is_empty()
    }

    /// The mean deviation of runs from the expected times, as a fraction of these.
    pub(super) fn deviation(&self) -> f64 {
        self.deviation
    }

    /// The greatest size that was measured, or one close to it.
    pub(super) fn greatest_known(&self) -> usize {
        let known = self.known.iter().zip(&self.sizes).rev();
        known.into_iter().find_map(|(known, size)| known.map(|_| *size)).unwrap_or(1)
    }

    /// Sizes with their expected times, in order. Empty if none is known.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (usize, f64)> {
        self.sizes.iter().zip(&self.curve).map(|(size, time)| (*size, time * self.speed))
    }

    /// The expected time of a run with this size. Infinite before any is known.
    pub(super) fn expected(&self, size: f64) -> f64 {
        self.at(size) * self.speed
    }

    fn at(&self, size: f64) -> f64 {
        let above = self.sizes.partition_point(|&other| (other as f64) < size);
        let point = |index: usize| Some((*self.sizes.get(index)? as f64, *self.curve.get(index)?));
        match (above.checked_sub(1).and_then(point), point(above)) {
            (Some((low, below)), Some((high, above))) => {
                below + (above - below) * (size - low) / (high - low)
            }
            (_, Some((_, time))) | (Some((_, time)), None) => time,
            (None, None) => f64::INFINITY,
        }
    }

    /// Counts a run of `size` items that took `seconds`. Returns whether the times of all sizes were computed again.
    pub(super) fn add(&mut self, size: usize, seconds: f64) -> bool {
        self.runs += 1;
        if self.runs <= COLD {
            return false;
        }
        let seconds = seconds.max(SHORTEST);
        let mut ratio = 1.0;
        if self.is_known() {
            let at_speed_1 = self.at(size as f64);
            let deviation = (seconds / (at_speed_1 * self.speed)).min(GREATEST_RATIO) - 1.0;
            self.deviation += (deviation.abs() - self.deviation) / AVERAGED;
            self.recent.rotate_left(1);
            self.recent[2] = seconds / at_speed_1;
            let mut sorted = self.recent;
            sorted.sort_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal));
            self.speed = (self.speed + (sorted[1] - self.speed) / 2.0).max(SHORTEST);
            // Compared at the size itself, which may lie between two averages.
            ratio = (seconds / (at_speed_1 * self.speed)).min(2.0);
        }
        let index = self.nearest(size);
        // A first run counts for the closest size that has an average.
        let closest = self.sizes.get(index).map_or(1.0, |closest| *closest as f64);
        let first = match self.is_known() {
            true => seconds / self.speed * self.at(closest) / self.at(size as f64),
            false => seconds,
        };
        let mut is_new = false;
        if let Some(known) = self.known.get_mut(index) {
            is_new = known.is_none();
            *known = Some(known.map_or((first, 1.0), |(time, runs)| {
                let runs = (runs + 1.0).min(AVERAGED);
                ((time * (1.0 + (ratio - 1.0) / runs)).max(SHORTEST), runs)
            }));
        }
        let is_due = is_new || self.runs.is_multiple_of(REDRAWN);
        if is_due {
            self.draw_curve();
        }
        is_due
    }

    fn nearest(&self, size: usize) -> usize {
        let above = self.sizes.partition_point(|&other| other < size);
        let distance = |index: usize| self.sizes.get(index).map_or(usize::MAX, |other| other.abs_diff(size));
        if above > 0 && distance(above - 1) <= distance(above) { above - 1 } else { above }
    }

    /// Connects the averages by lines that do not fall.
    fn draw_curve(&mut self) {
        let Self { sizes, known, points, curve, .. } = self;
        points.clear();
        for (size, known) in sizes.iter().zip(known.iter()) {
            let Some((time, _)) = known else { continue };
            let before = points.last().map_or(0.0, |(_, before)| *before);
            points.push((*size as f64, time.max(before)));
        }
        let (Some(&first), Some(&last)) = (points.first(), points.last()) else { return };
        // The line beyond the last average begins at half of its size, or at the first one.
        let half = points.iter().rev().find(|(size, _)| size * 2.0 <= last.0).copied().unwrap_or(first);
        let slope = if half.0 < last.0 {
            (last.1 - half.1) / (last.0 - half.0)
        } else {
            ASSUMED_SLOPE * last.1 / last.0
        };
        curve.clear();
        let mut above = points.iter().copied().peekable();
        let mut low = first;
        for size in sizes.iter().map(|size| *size as f64) {
            while let Some(next) = above.next_if(|(at, _)| *at <= size) {
                low = next;
            }
            curve.push(match above.peek() {
                _ if size <= low.0 => low.1,
                Some((at, time)) => low.1 + (time - low.1) * (size - low.0) / (at - low.0),
                None => low.1 + slope * (size - low.0),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(times: &mut RunTimes, count: u64, size: usize, seconds: f64) {
        for _ in 0..count {
            times.add(size, seconds);
        }
    }

    /// Times learned from forty runs of each size.
    fn learned(max_size: usize, time: impl Fn(usize) -> f64, sizes: &[usize]) -> RunTimes {
        let mut times = RunTimes::new(max_size);
        repeat(&mut times, COLD, 1, 9.0);
        for _ in 0..40 {
            sizes.iter().for_each(|&size| repeat(&mut times, 1, size, time(size)));
        }
        times
    }

    fn close(times: &RunTimes, size: usize, expected: f64) {
        let found = times.expected(size as f64);
        assert!((found / expected - 1.0).abs() < 0.06, "size {size}: {found}, not {expected}");
    }

    #[test]
    fn sizes_reach_the_greatest_batch() {
        for max_size in [1, 2, 7, 8, 9, 64, 1000, 4096] {
            let times = RunTimes::new(max_size);
            assert_eq!(times.sizes.last(), Some(&max_size));
            assert!(times.sizes.is_sorted_by(|one, other| one < other) && times.sizes.len() <= 50);
            assert_eq!((times.is_known(), times.all().count(), times.greatest_known()), (false, 0, 1));
            assert_eq!(times.expected(1.0), f64::INFINITY);
        }
    }

    #[test]
    fn first_runs_do_not_count() {
        let mut times = RunTimes::new(8);
        repeat(&mut times, COLD, 1, 60.0);
        assert!(!times.is_known());
        times.add(2, 0.004);
        close(&times, 2, 0.004);
    }

    #[test]
    fn unseen_sizes_lie_on_lines_between_and_beyond_seen_ones() {
        let affine = |size: usize| 0.004 + 0.0005 * size as f64;
        let times = learned(64, affine, &[2, 8, 20]);
        for size in [2, 5, 8, 13, 20, 40, 64] {
            close(&times, size, affine(size));
        }
        // Smaller ones are not expected to be faster than what was seen.
        close(&times, 1, affine(2));
        assert!((19..=21).contains(&times.greatest_known()));
    }

    #[test]
    fn a_single_seen_size_says_little_of_greater_ones() {
        let times = learned(32, |_| 0.01, &[4]);
        close(&times, 8, 0.015);
        close(&times, 1, 0.01);
    }

    #[test]
    fn outliers_change_nothing_and_a_new_speed_counts_for_all_sizes() {
        let affine = |size: usize| 0.004 + 0.0005 * size as f64;
        let mut times = learned(32, affine, &[1, 8, 16]);
        times.add(8, 1.0);
        close(&times, 16, affine(16));
        repeat(&mut times, 10, 1, 3.0 * affine(1));
        close(&times, 16, 3.0 * affine(16));
        repeat(&mut times, 10, 8, affine(8));
        close(&times, 1, affine(1));
    }

    #[test]
    fn times_never_fall_with_the_size() {
        let times = learned(32, |size| if size == 8 { 0.02 } else { 0.01 }, &[1, 8, 16]);
        let all: Vec<_> = times.all().collect();
        assert!(all.is_sorted_by(|one, other| one.1 <= other.1), "{all:?}");
        assert_eq!(all.last().map(|(size, _)| *size), Some(32));
    }
}
