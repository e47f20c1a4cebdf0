//! Requests to ensembles with conditions, maps, fallbacks or time limits.
//!
//! A tensor may exist for some rows of the batch only: a step with a condition runs with the rows in which it holds, and
//! the rows of all steps that write a tensor are joined. Without a batch dimension a request has one row.
//!
//! ```text
//! step:   waits for its tensors -> skipped
//!                               -> runs -> succeeded
//!                                       -> failed -> its fallbacks run, in order -> replaced
//!                                                 -> its outputs have values -> replaced
//!                                                 -> the request fails
//! ```
//!
//! Members are not decoupled here, so there is one wave and one response.

pub(crate) mod deadlines;
mod mapped;
mod plan;
mod requests;
mod rows;
mod run;
mod running;
mod tensors;

pub(crate) use self::plan::Flow;
pub(crate) use self::run::run;
