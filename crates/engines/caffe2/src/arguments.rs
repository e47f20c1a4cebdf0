//! The arguments of an operator, with a record of those that were read.

use std::cell::RefCell;

use crate::caffe2::Argument;

/// Arguments that change how a result is computed, but not the result itself.
const WITHOUT_MEANING: &[&str] = &[
    "algo",
    "allow_broadcast_fastpath",
    "cudnn_exhaustive_search",
    "cudnn_state",
    "deterministic",
    "device_id",
    "enable_tensor_core",
    "exhaustive_search",
    "float16_compute",
    "fuse_scale_bias",
    "init_params",
    "is_test",
    "momentum",
    "no_bias",
    "num_batches",
    "order",
    "shared_buffer",
    "shared_ws_name",
    "training_mode",
    "use_cudnn",
    "ws_nbytes_limit",
];

/// The arguments of an operator. Reading one marks it as known.
pub(crate) struct Arguments<'a> {
    list: &'a [Argument],
    known: RefCell<Vec<&'a str>>,
}

impl<'a> Arguments<'a> {
    pub(crate) fn of(list: &'a [Argument]) -> Self {
        Self { list, known: RefCell::default() }
    }

    fn find(&self, name: &str) -> Option<&'a Argument> {
        let found = self.list.iter().find(|argument| argument.name == name)?;
        self.known.borrow_mut().push(&found.name);
        Some(found)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// A number. Like Caffe2, accepts an integer in place of a float.
    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        let Some(argument) = self.find(name) else { return default };
        argument.f.or(argument.i.map(|value| value as f32)).unwrap_or(0.0)
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        self.optional_int(name).unwrap_or(default)
    }

    pub(crate) fn optional_int(&self, name: &str) -> Option<i64> {
        self.find(name).map(|argument| argument.i.unwrap_or(0))
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let text = self.find(name)?.s.as_deref().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// A list of integers; empty if absent.
    pub(crate) fn ints(&self, name: &str) -> &'a [i64] {
        self.find(name).map_or(&[], |argument| &argument.ints)
    }

    /// All values of an argument, regardless of type.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a Argument> {
        self.find(name)
    }

    /// The first argument that was not read and may change the result.
    pub(crate) fn unknown(&self) -> Option<&'a str> {
        let known = self.known.borrow();
        let names = self.list.iter().map(|argument| argument.name.as_str());
        names.into_iter().find(|name| !known.contains(name) && !WITHOUT_MEANING.contains(name))
    }
}
