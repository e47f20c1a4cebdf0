//! Statistics that backends report: per request, batch and response.

use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Error, ErrorCode, ExecutionTimes, ResponseKind, ResponseTimes, Result};
use triton_sys::*;

use crate::boundary::exports;
use crate::clock::instant;
use crate::reply::Reply;

/// The report on one response, under construction.
#[derive(Default)]
pub(crate) struct ResponseReport(Mutex<Fields>);

#[derive(Clone, Default)]
struct Fields {
    has_instance: bool,
    reply: Option<Arc<Reply>>,
    start: u64,
    /// 0 without outputs.
    output_start: u64,
    end: u64,
    error: Option<ErrorCode>,
}

impl ResponseReport {
    fn set(&self, set: impl FnOnce(&mut Fields)) {
        set(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn report(&self) -> Result<()> {
        let fields = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !fields.has_instance {
            return Err(Error::invalid_arg("the response statistics have no model instance"));
        }
        let reply = fields
            .reply
            .ok_or_else(|| Error::invalid_arg("the response statistics have no response factory"))?;
        let kind = match fields.error {
            Some(ErrorCode::Cancelled) => ResponseKind::Cancelled,
            Some(_) => ResponseKind::Error,
            None if fields.output_start > 0 => ResponseKind::Answer,
            None => ResponseKind::Nothing,
        };
        let output_start = (fields.output_start > 0).then(|| instant(fields.output_start));
        let (started, ended) = (instant(fields.start), instant(fields.end));
        reply.report_response(kind, ResponseTimes { started, output_started: output_start, ended });
        Ok(())
    }
}

fn times(exec_start: u64, compute_start: u64, compute_end: u64, exec_end: u64) -> ExecutionTimes {
    ExecutionTimes {
        started: instant(exec_start),
        inputs_ready: instant(compute_start),
        outputs_ready: instant(compute_end),
        ended: instant(exec_end),
    }
}

exports! {
    /// The request's answers show whether it succeeded.
    fn TRITONBACKEND_ModelInstanceReportStatistics(
        instance: *mut TRITONBACKEND_ModelInstance,
        request: *mut TRITONBACKEND_Request,
        _success: bool,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) {
        instance.get()?;
        request.get()?.reply().report(times(exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns));
    }

    fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: *mut TRITONBACKEND_ModelInstance,
        batch_size: u64,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) {
        let monitor = instance.get()?.monitor();
        let monitor = monitor.ok_or_else(|| Error::invalid_arg("the instance has not executed anything yet"))?;
        let size = usize::try_from(batch_size).unwrap_or(usize::MAX);
        monitor.executed(size, times(exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns));
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsNew(
        response_statistics: *mut *mut TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        response_statistics.give(Arc::<ResponseReport>::default())?;
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        response_statistics.delete()?;
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        model_instance: *mut TRITONBACKEND_ModelInstance,
    ) {
        model_instance.get()?;
        response_statistics.get()?.set(|fields| fields.has_instance = true);
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        response_factory: *mut TRITONBACKEND_ResponseFactory,
    ) {
        let reply = Arc::clone(response_factory.get()?.reply());
        response_statistics.get()?.set(|fields| fields.reply = Some(reply));
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        response_start: u64,
    ) {
        response_statistics.get()?.set(|fields| fields.start = response_start);
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        compute_output_start: u64,
    ) {
        response_statistics.get()?.set(|fields| fields.output_start = compute_output_start);
    }

    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        response_end: u64,
    ) {
        response_statistics.get()?.set(|fields| fields.end = response_end);
    }

    /// The backend keeps the error; null means success.
    fn TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
        error: *mut TRITONSERVER_Error,
    ) {
        let code = if error.is_null() { None } else { Some(error.get()?.as_error().code()) };
        response_statistics.get()?.set(|fields| fields.error = code);
    }

    fn TRITONBACKEND_ModelInstanceReportResponseStatistics(
        response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics,
    ) {
        response_statistics.get()?.report()?;
    }
}
