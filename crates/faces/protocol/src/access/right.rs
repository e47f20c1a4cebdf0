//! Rights on models, and what an action needs of them.

/// A right on models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// Run models.
    Infer,
    /// Read metadata, configurations, statistics, metrics, and the repository's index.
    Read,
    /// Load and unload models.
    Control,
    /// Load models with files or configurations that come with the request, or from folders that it names. Such files may
    /// be code, which runs as the server.
    Files,
    /// Read and change the settings of log and traces, and register and use shared memory.
    Admin,
}

impl Right {
    /// All rights with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Infer, "infer"),
        (Self::Read, "read"),
        (Self::Control, "control"),
        (Self::Files, "files"),
        (Self::Admin, "admin"),
    ];

    /// The right's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Infer => "infer",
            Self::Read => "read",
            Self::Control => "control",
            Self::Files => "files",
            Self::Admin => "admin",
        }
    }
}

/// The need of an action under an access policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// Any right on the model, if the request names one, otherwise nothing.
    Sight,
    /// This right on the model, if the request names one, otherwise on at least one model.
    Any(Right),
    /// This right on the model, if the request names one, otherwise on all models.
    Every(Right),
}

impl Need {
    /// The right; `None` if any right will do, or none is needed.
    pub const fn right(self) -> Option<Right> {
        match self {
            Self::Nothing | Self::Sight => None,
            Self::Any(right) | Self::Every(right) => Some(right),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_have_different_names() {
        for (index, (right, name)) in Right::ALL.into_iter().enumerate() {
            assert_eq!((right as usize, right.name()), (index, name));
            assert!(Right::ALL.iter().all(|(other, named)| (*other == right) == (*named == name)));
        }
    }
}
