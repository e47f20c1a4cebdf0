//! The functions behind the scores of classes and targets, and the labels of classes.

use tract_hir::internal::*;
use tract_onnx::pb::NodeProto;

/// A function of a row's scores: the attribute `post_transform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Logistic,
    Softmax,
    /// Scores of 0 stay.
    SoftmaxZero,
    Probit,
}

impl Transform {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        Ok(match node.get_attr_opt::<&str>("post_transform")?.unwrap_or("NONE") {
            "NONE" => Self::None,
            "LOGISTIC" => Self::Logistic,
            "SOFTMAX" => Self::Softmax,
            "SOFTMAX_ZERO" => Self::SoftmaxZero,
            "PROBIT" => Self::Probit,
            other => bail!("it has no post_transform '{other}'"),
        })
    }

    /// The function by its number in TreeEnsemble, as ONNX Runtime counts them. ONNX has 1 and 2 the other way round.
    pub(super) fn of_number(number: i64) -> TractResult<Self> {
        let all = [Self::None, Self::Logistic, Self::Softmax, Self::SoftmaxZero, Self::Probit];
        let of = usize::try_from(number).ok().and_then(|number| all.get(number));
        of.copied().with_context(|| format!("it has no post_transform {number}"))
    }

    /// Changes the scores of a row. ONNX Runtime leaves a single one as it is, but for the probit.
    pub(super) fn apply(self, scores: &mut [f32]) {
        match self {
            Self::Probit => scores.iter_mut().for_each(|score| *score = probit(*score)),
            _ if scores.len() < 2 => {}
            Self::None => {}
            Self::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Self::Softmax | Self::SoftmaxZero => {
                let largest = scores.iter().copied().fold(f32::MIN, f32::max);
                let mut sum = 0.0;
                for score in &mut *scores {
                    *score = match self {
                        Self::SoftmaxZero if score.abs() <= 1e-7 => *score * (-largest).exp(),
                        _ => (*score - largest).exp(),
                    };
                    sum += *score;
                }
                scores.iter_mut().for_each(|score| *score /= sum);
            }
        }
    }

    /// Both scores of two classes, from `score` of the second. Functions other than the logistic one take `opposite` for the first.
    pub(super) fn of_two(self, score: f32, opposite: f32) -> [f32; 2] {
        match self {
            Self::Logistic => [logistic(-score), logistic(score)],
            _ => [opposite, score],
        }
    }
}

fn logistic(value: f32) -> f32 {
    let positive = 1.0 / (1.0 + (-value.abs()).exp());
    if value < 0.0 { 1.0 - positive } else { positive }
}

/// The inverse of the normal distribution, by Winitzki's approximation of the inverse error function.
fn probit(value: f32) -> f32 {
    const A: f32 = 0.147;
    let x = 2.0 * value - 1.0;
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let half = 2.0 / (std::f32::consts::PI * A) + 0.5 * log;
    let root = (-half + (half * half - log / A).sqrt()).sqrt();
    std::f32::consts::SQRT_2 * if x < 0.0 { -root } else { root }
}

/// The place of the largest number; the first of equal ones, and the first of all if there is only NaN.
pub(super) fn largest(scores: impl Iterator<Item = (usize, f32)>) -> usize {
    let larger = |best: Option<(usize, f32)>, (at, score): (usize, f32)| match best {
        Some((_, highest)) if score > highest => Some((at, score)),
        Some(best) => Some(best),
        None => Some((at, score)),
    };
    scores.fold(None, larger).map_or(0, |(at, _)| at)
}

/// The labels of classes.
#[derive(Clone, Debug)]
pub(super) enum Labels {
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

impl Labels {
    /// The labels in the attributes of these names.
    pub(super) fn new(node: &NodeProto, numbers: &str, texts: &str) -> TractResult<Self> {
        let own_numbers = node.get_attr_opt_vec::<i64>(numbers)?.unwrap_or_default();
        let own_texts = node.get_attr_opt_vec::<String>(texts)?.unwrap_or_default();
        match (own_numbers.is_empty(), own_texts.is_empty()) {
            (false, true) => Ok(Self::Numbers(own_numbers)),
            (true, false) => Ok(Self::Texts(own_texts)),
            _ => bail!("it needs either {numbers} or {texts}"),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Numbers(labels) => labels.len(),
            Self::Texts(labels) => labels.len(),
        }
    }

    pub(super) fn datum_type(&self) -> DatumType {
        match self {
            Self::Numbers(_) => DatumType::I64,
            Self::Texts(_) => DatumType::String,
        }
    }

    /// The labels of rows by the numbers of their classes.
    pub(super) fn of(&self, classes: &[usize]) -> Tensor {
        match self {
            Self::Numbers(labels) => tensor1(&classes.iter().map(|&class| labels[class]).collect::<Vec<_>>()),
            Self::Texts(labels) => {
                tensor1(&classes.iter().map(|&class| labels[class].clone()).collect::<Vec<_>>())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_keeps_zeros_where_it_has_to() {
        let all = |transform: Transform, scores: [f32; 3]| {
            let mut scores = scores;
            transform.apply(&mut scores);
            scores
        };
        assert_eq!(all(Transform::SoftmaxZero, [0.0, 3.0, 0.0]), [0.0, 1.0, 0.0]);
        assert!(all(Transform::Softmax, [0.0, 3.0, 0.0])[0] > 0.04);
        for transform in [Transform::Softmax, Transform::SoftmaxZero] {
            let sum: f32 = all(transform, [1000.0, 999.0, -5.0]).iter().sum();
            assert!((sum - 1.0).abs() < 1e-6, "{transform:?}");
        }
    }

    #[test]
    fn probit_inverts_the_normal_distribution() {
        for (value, expected) in [(0.5, 0.0), (0.841_344_7, 1.0), (0.158_655_3, -1.0), (0.977_249_9, 2.0)] {
            assert!((probit(value) - expected).abs() < 5e-3, "{value}: {}", probit(value));
        }
        assert_eq!(probit(0.0), f32::NEG_INFINITY);
        assert_eq!(probit(1.0), f32::INFINITY);
        assert!(probit(1.5).is_nan());
    }

    #[test]
    fn the_first_of_equal_scores_is_the_largest() {
        let of = |scores: &[f32]| largest(scores.iter().copied().enumerate());
        assert_eq!(of(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(of(&[-1.0]), 0);
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[f32::NAN, 2.0]), 0);
    }
}
