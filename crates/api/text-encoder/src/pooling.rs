//! One vector from the vectors of a text's tokens.

/// A way to make one vector of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The first token's vector.
    First,
    /// The largest value of each dimension.
    Max,
    /// The mean.
    Mean,
    /// The sum, divided by the square root of the number of tokens.
    MeanSquareRoot,
    /// The mean, weighted by the places of the tokens.
    Weighted,
    /// The last token's vector.
    Last,
}

impl Mode {
    /// The names in configurations, in the order in which sentence-transformers concatenates several modes.
    pub(crate) const NAMES: [(&str, Self); 6] = [
        ("cls", Self::First),
        ("max", Self::Max),
        ("mean", Self::Mean),
        ("mean_sqrt_len_tokens", Self::MeanSquareRoot),
        ("weightedmean", Self::Weighted),
        ("lasttoken", Self::Last),
    ];

    /// The mode of this name: sentence-transformers' names, and `first` and `last`.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn parse(name: &str) -> Result<Self, String> {
        let known = Self::NAMES.into_iter().chain([("first", Self::First), ("last", Self::Last)]);
        known.into_iter().find_map(|(known, mode)| (known == name).then_some(mode)).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            format!("pooling: unknown value '{name}' (available: {})", names.join(", "))
        })
    }
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// The modes whose vectors are concatenated.
    pub modes: Vec<Mode>,
    /// Whether the tokens of a prompt in front of the text count.
    pub includes_prompt: bool,
}

impl From<Mode> for Pooling {
    fn from(mode: Mode) -> Self {
        Self { modes: vec![mode], includes_prompt: true }
    }
}

impl Pooling {
    /// The vector of a text. `rows` has the vectors of its tokens, without padding; `prompt` of them are a prompt's.
    pub fn pool(&self, rows: &[&[f32]], prompt: usize) -> Vec<f32> {
        let skipped = if self.includes_prompt { 0 } else { prompt };
        let counted = rows.get(skipped..).unwrap_or_default();
        let size = rows.first().map_or(0, |row| row.len());
        let mut vector = Vec::with_capacity(size * self.modes.len());
        for mode in &self.modes {
            match (mode, counted) {
                (_, []) => vector.extend(std::iter::repeat_n(0.0, size)),
                (Mode::First, [first, ..]) => vector.extend_from_slice(first),
                (Mode::Last, [.., last]) => vector.extend_from_slice(last),
                (Mode::Max, _) => {
                    let largest = |mut sum: Vec<f32>, row: &&[f32]| {
                        sum.iter_mut().zip(*row).for_each(|(sum, value)| *sum = sum.max(*value));
                        sum
                    };
                    vector.extend(counted.iter().fold(vec![f32::NEG_INFINITY; size], largest));
                }
                (Mode::Mean, _) => vector.extend(mean(counted, size, |_| 1.0)),
                (Mode::MeanSquareRoot, _) => {
                    let root = (counted.len() as f32).sqrt();
                    vector.extend(mean(counted, size, |_| 1.0).into_iter().map(|value| value * root));
                }
                (Mode::Weighted, _) => {
                    vector.extend(mean(counted, size, |place| (skipped + place + 1) as f32));
                }
            }
        }
        vector
    }
}

/// The mean of rows with weights by their places.
fn mean(rows: &[&[f32]], size: usize, weight: impl Fn(usize) -> f32) -> Vec<f32> {
    let (mut sums, mut total) = (vec![0.0; size], 0.0);
    for (place, row) in rows.iter().enumerate() {
        let weight = weight(place);
        total += weight;
        for (sum, value) in sums.iter_mut().zip(*row) {
            *sum += value * weight;
        }
    }
    sums.iter_mut().for_each(|sum| *sum /= total);
    sums
}

/// Scales a vector to the length 1. A vector of zeros stays as it is.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        for value in vector {
            *value = (f64::from(*value) / length) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [&[f32]; 3] = [&[1.0, -1.0], &[5.0, 2.0], &[3.0, -4.0]];

    fn pooled(mode: Mode, prompt: usize) -> Vec<f32> {
        Pooling { modes: vec![mode], includes_prompt: false }.pool(&ROWS, prompt)
    }

    #[test]
    fn modes_pool_what_follows_the_prompt() {
        for (mode, whole, rest) in [
            (Mode::First, [1.0, -1.0], [5.0, 2.0]),
            (Mode::Last, [3.0, -4.0], [3.0, -4.0]),
            (Mode::Max, [5.0, 2.0], [5.0, 2.0]),
            (Mode::Mean, [3.0, -1.0], [4.0, -1.0]),
            (
                Mode::MeanSquareRoot,
                [9.0 / 3.0_f32.sqrt(), -3.0 / 3.0_f32.sqrt()],
                [8.0 / 2.0_f32.sqrt(), -2.0 / 2.0_f32.sqrt()],
            ),
            // The weights are 1, 2 and 3, also behind a prompt.
            (Mode::Weighted, [20.0 / 6.0, -9.0 / 6.0], [19.0 / 5.0, -8.0 / 5.0]),
        ] {
            for (prompt, expected) in [(0, whole), (1, rest)] {
                let found = pooled(mode, prompt);
                let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
                assert!(close && found.len() == 2, "{mode:?} {prompt}: {found:?}");
            }
            assert_eq!(pooled(mode, 3), [0.0, 0.0]);
        }
    }

    #[test]
    fn several_modes_are_concatenated_and_prompts_count_unless_excluded() {
        let pooling = Pooling { modes: vec![Mode::First, Mode::Last], includes_prompt: true };
        assert_eq!(pooling.pool(&ROWS, 1), [1.0, -1.0, 3.0, -4.0]);
        assert_eq!(pooling.pool(&[], 0), [0.0_f32; 0]);
    }

    #[test]
    fn modes_have_the_names_of_both_projects() {
        for (name, mode) in
            [("cls", Mode::First), ("first", Mode::First), ("last", Mode::Last), ("lasttoken", Mode::Last)]
        {
            assert_eq!(Mode::parse(name), Ok(mode));
        }
        let error = Mode::parse("median").unwrap_err();
        assert!(error.contains("unknown value 'median' (available: cls, max, mean,"), "{error}");
    }

    #[test]
    fn zeros_have_no_direction() {
        let mut vectors = [[3.0, 4.0], [0.0, 0.0]];
        vectors.iter_mut().for_each(|vector| normalize(vector));
        assert_eq!(vectors, [[0.6, 0.8], [0.0, 0.0]]);
    }
}
