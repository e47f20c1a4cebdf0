//! The functions that turn the sums of trees into results.

/// A function that turns the sums of a row into its results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    /// The sum itself.
    Identity,
    /// `x * |x|`, for models that were trained on square roots.
    SignedSquare,
    /// 1 for positive sums, or else 0.
    Hinge,
    /// The logistic function of the sum times this, for each output by itself.
    Sigmoid(f64),
    /// `e^x`.
    Exponential,
    /// `2^(-x / c)`: the anomaly score of isolation forests.
    AnomalyScore(f64),
    /// `ln(1 + e^x)`.
    SoftPlus,
    /// Exponentials that sum up to 1.
    Softmax,
}

impl Link {
    /// Applies the function to the sums of a row, in single precision.
    pub fn apply(self, row: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::SignedSquare => each(row, |x| x * x.abs()),
            Self::Hinge => each(row, |x| if x > 0.0 { 1.0 } else { 0.0 }),
            Self::Sigmoid(alpha) => each(row, |x| 1.0 / (1.0 + (-(alpha as f32) * x).exp())),
            Self::Exponential => each(row, f32::exp),
            Self::AnomalyScore(c) => each(row, |x| (-x / c as f32).exp2()),
            Self::SoftPlus => each(row, |x| x.exp().ln_1p()),
            Self::Softmax => {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                each(row, |x| (x - largest).exp());
                let sum: f32 = row.iter().sum();
                each(row, |x| x / sum);
            }
        }
    }

    /// Applies the function to the sums of a row, in double precision.
    pub fn apply_double(self, row: &mut [f64]) {
        match self {
            Self::Identity => {}
            Self::SignedSquare => each(row, |x| x * x.abs()),
            Self::Hinge => each(row, |x| if x > 0.0 { 1.0 } else { 0.0 }),
            Self::Sigmoid(alpha) => each(row, |x| 1.0 / (1.0 + (-alpha * x).exp())),
            Self::Exponential => each(row, f64::exp),
            Self::AnomalyScore(c) => each(row, |x| (-x / c).exp2()),
            Self::SoftPlus => each(row, |x| x.exp().ln_1p()),
            Self::Softmax => {
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                each(row, |x| (x - largest).exp());
                let sum: f64 = row.iter().sum();
                each(row, |x| x / sum);
            }
        }
    }
}

fn each<T: Copy>(row: &mut [T], function: impl Fn(T) -> T) {
    for value in row {
        *value = function(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_the_same_in_both_precisions() {
        let rows: [&[f32]; 4] = [&[0.0], &[-3.5, 0.25], &[1.5, -0.5, 4.0], &[-80.0, 80.0]];
        let links = [
            (Link::Identity, vec![0.0]),
            (Link::SignedSquare, vec![0.0]),
            (Link::Hinge, vec![0.0]),
            (Link::Sigmoid(2.0), vec![0.5]),
            (Link::Exponential, vec![1.0]),
            (Link::AnomalyScore(3.0), vec![1.0]),
            (Link::SoftPlus, vec![2_f64.ln()]),
            (Link::Softmax, vec![1.0]),
        ];
        for (link, of_zero) in links {
            for row in rows {
                let mut single = row.to_vec();
                let mut double: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
                link.apply(&mut single);
                link.apply_double(&mut double);
                for (a, b) in single.iter().zip(&double) {
                    assert!(
                        (f64::from(*a) - b).abs() <= 1e-5 * b.abs().max(1e-30),
                        "{link:?} {row:?}: {a} {b}"
                    );
                }
                if row.len() == 1 {
                    assert_eq!(double, of_zero, "{link:?}");
                }
            }
        }
    }

    #[test]
    fn softmax_sums_up_to_one_whatever_the_size_of_its_inputs() {
        for row in [[1000.0, 1001.0, 999.0], [-1e30, 0.0, 1e30], [5.0; 3]] {
            let mut single: Vec<f32> = row.map(|x| x as f32).to_vec();
            let mut double = row.to_vec();
            Link::Softmax.apply(&mut single);
            Link::Softmax.apply_double(&mut double);
            assert!((single.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{single:?}");
            assert!((double.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{double:?}");
        }
    }
}
