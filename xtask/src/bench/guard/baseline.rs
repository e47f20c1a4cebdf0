//! The committed counts, and how new ones compare.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// How much more or less than its baseline a count may be, in percent.
const LIMIT: f64 = 3.0;

/// Before what the counts depend on.
const COUNTED_ON: &str = "# Counted on: ";

const UPDATE: &str = "cargo xtask bench guard --update";

/// Instructions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<'a> {
    /// The name of its case.
    pub name: &'a str,
    pub instructions: u64,
}

/// The committed counts.
#[derive(Debug, PartialEq, Eq)]
pub struct Baseline<'a> {
    /// The architecture and the programs.
    pub counted_on: &'a str,
    counts: Vec<Count<'a>>,
}

impl<'a> Baseline<'a> {
    /// Reads the text of the file: a name and a number per line.
    pub fn parse(text: &'a str) -> Result<Self> {
        let counted_on = text.lines().find_map(|line| line.strip_prefix(COUNTED_ON));
        let counted_on = counted_on.with_context(|| format!("no line begins with '{COUNTED_ON}'"))?;
        let mut counts: Vec<Count<'_>> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [name, number] = fields[..] else { bail!("not a name and a number: '{line}'") };
            let instructions = number.parse().with_context(|| format!("not a number: '{line}'"))?;
            ensure!(instructions > 0, "no instructions: '{line}'");
            ensure!(counts.iter().all(|count| count.name != name), "{name} is there twice");
            counts.push(Count { name, instructions });
        }
        Ok(Self { counted_on, counts })
    }

    /// The text of the file with these counts.
    pub fn text(counted_on: &str, counts: &[Count<'_>]) -> String {
        let mut text =
            format!("# Instructions of a request. Written by `{UPDATE}`.\n{COUNTED_ON}{counted_on}\n");
        for Count { name, instructions } in counts {
            let _ = writeln!(text, "{name:<12}{instructions:>10}");
        }
        text
    }

    /// The names of the cases.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.counts.iter().map(|count| count.name)
    }

    /// Compares new counts.
    pub fn compare(&self, counts: &[Count<'a>]) -> Comparison<'a> {
        let baseline = |name| self.counts.iter().find(|count| count.name == name);
        let rows = counts.iter().map(|count| Row {
            count: *count,
            baseline: baseline(count.name).map(|count| count.instructions),
        });
        Comparison { rows: rows.collect() }
    }
}

/// New counts and the committed ones.
pub struct Comparison<'a> {
    rows: Vec<Row<'a>>,
}

struct Row<'a> {
    count: Count<'a>,
    /// The committed count, if there is one.
    baseline: Option<u64>,
}

impl Row<'_> {
    /// By how many percent the count is over the baseline.
    fn percent(&self) -> Option<f64> {
        let baseline = self.baseline? as f64;
        Some((self.count.instructions as f64 - baseline) / baseline * 100.0)
    }
}

impl Comparison<'_> {
    /// The table of all cases.
    pub fn table(&self) -> String {
        let mut text = format!("{:<12}{:>14}{:>12}{:>10}\n", "case", "instructions", "baseline", "change");
        for row in &self.rows {
            let Count { name, instructions } = row.count;
            let baseline = row.baseline.map_or_else(|| "none".to_owned(), |count| count.to_string());
            let change = row.percent().map_or_else(String::new, |percent| format!("{percent:+.1} %"));
            let line = format!("{name:<12}{instructions:>14}{baseline:>12}{change:>10}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    /// Fails if a count is over the limit or has no baseline. A count far below its baseline is only reported: the next
    /// change could then lose what was gained without being noticed.
    ///
    /// `profiles` is the folder with Callgrind's output of each case.
    pub fn verdict(&self, counted_on: &str, now: &str, profiles: &Path) -> Result<()> {
        let mut over = Vec::new();
        for row in &self.rows {
            let name = row.count.name;
            match row.percent() {
                None => over.push(format!("{name} has no baseline; run `{UPDATE}`")),
                Some(percent) if percent > LIMIT => {
                    let profile = profiles.join(format!("{name}.out"));
                    over.push(format!(
                        "{name} takes {percent:.1} % more instructions than its baseline (limit {LIMIT} %); \
                         `callgrind_annotate {}` shows where",
                        profile.display()
                    ));
                }
                Some(percent) if percent < -LIMIT => {
                    println!(
                        "{name} takes {:.1} % fewer instructions than its baseline, which is stale; run `{UPDATE}`",
                        -percent
                    );
                }
                Some(_) => {}
            }
        }
        if over.is_empty() {
            return Ok(());
        }
        if counted_on != now {
            over.push(format!("the baseline was counted on {counted_on}; this is {now}"));
        }
        over.push(format!("if the change is worth it, run `{UPDATE}` and commit the result"));
        bail!("{}", over.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "x86_64, rustc 1.95.0, valgrind-3.19.0, glibc 2.36";

    fn counts<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<Count<'static>> {
        counts.map(|(name, instructions)| Count { name, instructions }).into()
    }

    #[test]
    fn baseline_is_read_as_written() {
        for counts in [counts([]), counts([("http-1mib", 12_345_678), ("a", 1), ("longer-than-usual", 30)])] {
            let text = Baseline::text(PLACE, &counts);
            assert_eq!(Baseline::parse(&text).unwrap(), Baseline { counted_on: PLACE, counts });
        }
    }

    #[test]
    fn malformed_baselines_are_refused() {
        for (lines, reason) in [
            ("a", "not a name and a number"),
            ("a 1 2", "not a name and a number"),
            ("", "not a name and a number"),
            ("a b", "not a number"),
            ("a -1", "not a number"),
            ("a 0", "no instructions"),
            ("a 1\na 2", "a is there twice"),
        ] {
            let text = format!("{COUNTED_ON}{PLACE}\n{lines}\n");
            let error = Baseline::parse(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{lines:?}: {error}");
        }
        let error = Baseline::parse("a 1\n").unwrap_err().to_string();
        assert!(error.contains("# Counted on: "), "{error}");
    }

    #[test]
    fn count_fails_only_above_the_limit() {
        for (count, fails) in
            [(1, false), (969, false), (970, false), (1030, false), (1031, true), (9000, true)]
        {
            let text = Baseline::text(PLACE, &counts([("a", 1000), ("b", 7)]));
            let baseline = Baseline::parse(&text).unwrap();
            let comparison = baseline.compare(&counts([("a", count), ("b", 7)]));
            let verdict = comparison.verdict(PLACE, PLACE, Path::new("/profiles"));
            assert_eq!(verdict.is_err(), fails, "{count}");
            if let Err(error) = verdict {
                let (text, excess) = (error.to_string(), (count as f64 - 1000.0) / 10.0);
                assert!(text.starts_with(&format!("a takes {excess:.1} % more")), "{text}");
                assert!(text.contains("`callgrind_annotate /profiles/a.out`"), "{text}");
                assert!(!text.contains("b takes") && !text.contains("was counted on"), "{text}");
            }
        }
    }

    #[test]
    fn failure_names_another_compiler() {
        let text = Baseline::text(PLACE, &counts([("a", 1000)]));
        let baseline = Baseline::parse(&text).unwrap();
        let now = PLACE.replace("1.95", "1.99");
        let failure = |count| {
            let comparison = baseline.compare(&counts([("a", count)]));
            comparison.verdict(baseline.counted_on, &now, Path::new("/")).map_err(|error| error.to_string())
        };
        failure(1000).unwrap();
        let error = failure(2000).unwrap_err();
        assert!(
            error.contains("counted on x86_64, rustc 1.95.0,") && error.contains("is x86_64, rustc 1.99.0,")
        );
    }

    #[test]
    fn new_case_fails_without_a_baseline() {
        let text = Baseline::text(PLACE, &counts([("a", 1000)]));
        let baseline = Baseline::parse(&text).unwrap();
        let comparison = baseline.compare(&counts([("a", 1000), ("new", 5)]));
        let error = comparison.verdict(PLACE, PLACE, Path::new("/")).unwrap_err().to_string();
        assert!(error.starts_with("new has no baseline"), "{error}");
    }

    #[test]
    fn table_shows_the_change_of_each_case() {
        let text = Baseline::text(PLACE, &counts([("a", 1000), ("b", 200)]));
        let baseline = Baseline::parse(&text).unwrap();
        let table = baseline.compare(&counts([("a", 1012), ("b", 190), ("c", 3)])).table();
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows,
            [
                vec!["case", "instructions", "baseline", "change"],
                vec!["a", "1012", "1000", "+1.2", "%"],
                vec!["b", "190", "200", "-5.0", "%"],
                vec!["c", "3", "none"],
            ]
        );
    }
}
