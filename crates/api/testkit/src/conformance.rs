//! Conformance suite of `backend-api`'s traits, for every backend.
//!
//! Each backend runs [`backend`] on a model of its own, described by a [`Subject`]. The suite acts as the server: it
//! loads, creates instances, executes batches and receives the answers.

use std::sync::Arc;
use std::thread;

use nereid_backend_api::{
    Answer, Backend, InferRequest, Instance, InstanceContext, InstanceKind, Model, ModelContext, Phase,
    Request, RequestedOutput, Response, Result, Tensor,
};

use crate::{Executions, Recorder};

/// A backend and one of its models. Requests are numbered: they differ in contents, and have equal shapes.
pub struct Subject {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// A model that loads.
    pub model: ModelContext,
    /// A request of one item.
    pub request: fn(u8) -> InferRequest,
    /// All outputs of that request: names, types, shapes and contents.
    pub outputs: fn(u8) -> Vec<Tensor>,
    /// Maximum number of requests in an execution.
    pub max_batch: usize,
    /// Whether the backend reports each execution, with its phases.
    pub reports_executions: bool,
    /// Models that the backend refuses, at their load or with their first instance, each with a part of the message.
    pub refused: Vec<(ModelContext, &'static str)>,
    /// A request that fails by itself, with a part of the message, if the backend has any.
    pub faulty: Option<Faulty>,
}

/// A request that fails, and a part of the message.
pub type Faulty = (fn() -> InferRequest, &'static str);

/// Runs all checks.
///
/// # Panics
/// If a check fails.
pub fn backend(subject: Subject) {
    let suite = Suite(subject);
    suite.a_model_that_is_not_in_order_is_refused_with_the_reason();
    suite.a_loaded_model_is_whole_and_ready();
    suite.a_request_is_answered_once_with_its_own_outputs();
    suite.each_request_of_a_batch_gets_its_own_answer();
    suite.only_requested_outputs_are_answered();
    suite.a_faulty_request_does_not_harm_the_others();
    suite.a_cancelled_request_is_answered_once_and_does_not_harm_the_others();
    suite.answers_outlive_their_instance_and_their_model();
    suite.instances_execute_side_by_side();
    suite.two_loads_of_a_model_are_independent();
}

struct Suite(Subject);

impl Suite {
    fn load(&self) -> Box<dyn Model> {
        self.0.backend.load(self.0.model.clone()).unwrap_or_else(|error| panic!("the model loads: {error}"))
    }

    fn execute(&self, model: &dyn Model, requests: Vec<InferRequest>) -> Vec<Answer> {
        let (requests, recorders): (Vec<_>, Vec<_>) =
            requests.into_iter().map(|request| Recorder::request(request, 1)).unzip();
        execute(model, 0, requests, &Arc::default());
        recorders.iter().map(|recorder| recorder.answer()).collect()
    }

    /// The numbers of a full batch.
    fn batch(&self) -> Vec<u8> {
        (0..u8::try_from(self.0.max_batch.min(8)).unwrap_or(8)).collect()
    }

    #[track_caller]
    fn assert_answers(&self, number: u8, answer: &Answer) {
        let response = answer.as_ref().unwrap_or_else(|error| panic!("request {number} failed: {error}"));
        assert_eq!(contents(response), described(&(self.0.outputs)(number)), "request {number}");
    }

    fn a_model_that_is_not_in_order_is_refused_with_the_reason(&self) {
        for (context, reason) in &self.0.refused {
            let outcome = self.0.backend.load(context.clone());
            let error = outcome
                .and_then(|model| instance(&*model, 0))
                .err()
                .unwrap_or_else(|| panic!("refused: {reason}"));
            assert!(error.message().contains(reason), "{error}");
        }
        // The refusal leaves nothing behind.
        self.load();
    }

    fn a_loaded_model_is_whole_and_ready(&self) {
        let model = self.load();
        if let Some(completed) = model.completed_config() {
            assert!(!completed.input.is_empty() && !completed.output.is_empty(), "{completed:?}");
        }
        model.ready().unwrap();
        let (request, _) = Recorder::request((self.0.request)(0), 1);
        // Callable before any instance exists.
        let _ = model.runs_at_once(&request);
        request.answer(Ok(Response::default()));
    }

    fn a_request_is_answered_once_with_its_own_outputs(&self) {
        let model = self.load();
        let (request, recorder) = Recorder::request((self.0.request)(1), 1);
        let executions = Arc::<Executions>::default();
        execute(&*model, 0, vec![request], &executions);
        self.assert_answers(1, &recorder.answer());
        assert_eq!(recorder.ends(), 1);
        if !self.0.reports_executions {
            return;
        }
        assert_eq!(recorder.phases(), [Phase::Started, Phase::InputsReady, Phase::OutputsReady]);
        let executions = executions.all();
        let [(size, times)] = executions[..] else { panic!("{executions:?}") };
        assert_eq!(size, 1);
        let order = [times.started, times.inputs_ready, times.outputs_ready, times.ended];
        assert!(order.is_sorted(), "{times:?}");
    }

    fn each_request_of_a_batch_gets_its_own_answer(&self) {
        let (model, numbers) = (self.load(), self.batch());
        let answers = self.execute(&*model, numbers.iter().map(|number| (self.0.request)(*number)).collect());
        for (number, answer) in numbers.into_iter().zip(&answers) {
            self.assert_answers(number, answer);
        }
    }

    fn only_requested_outputs_are_answered(&self) {
        let model = self.load();
        for output in (self.0.outputs)(3) {
            let outputs = vec![RequestedOutput::new(output.name.clone())];
            let request = InferRequest { outputs, ..(self.0.request)(3) };
            let answer = self.execute(&*model, vec![request]).remove(0).unwrap();
            assert_eq!(contents(&answer), described(&[output]));
        }
    }

    fn a_faulty_request_does_not_harm_the_others(&self) {
        let Some((faulty, reason)) = &self.0.faulty else { return };
        let model = self.load();
        let mut requests = vec![faulty()];
        if self.0.max_batch > 1 {
            requests.push((self.0.request)(4));
        }
        let answers = self.execute(&*model, requests);
        let error = answers[0].as_ref().expect_err(reason);
        assert!(error.message().contains(reason), "{error}");
        answers.get(1).into_iter().for_each(|answer| self.assert_answers(4, answer));
        // The model still works.
        self.assert_answers(5, &self.execute(&*model, vec![(self.0.request)(5)])[0]);
    }

    fn a_cancelled_request_is_answered_once_and_does_not_harm_the_others(&self) {
        let (model, numbers) = (self.load(), self.batch());
        let (requests, recorders): (Vec<_>, Vec<_>) =
            numbers.iter().map(|number| Recorder::request((self.0.request)(*number), 1)).unzip();
        recorders[0].cancel();
        execute(&*model, 0, requests, &Arc::default());
        // Whether it is executed all the same is up to the backend.
        recorders[0].answers();
        assert_eq!(recorders[0].ends(), 1);
        for (number, recorder) in numbers.into_iter().zip(&recorders).skip(1) {
            self.assert_answers(number, &recorder.answer());
        }
    }

    fn answers_outlive_their_instance_and_their_model(&self) {
        let model = self.load();
        let answers = self.execute(&*model, vec![(self.0.request)(6)]);
        drop(model);
        self.assert_answers(6, &answers[0]);
    }

    fn instances_execute_side_by_side(&self) {
        let model = self.load();
        thread::scope(|scope| {
            for instance in 0..2 {
                let model = &*model;
                scope.spawn(move || {
                    let mut executing = made(model, instance);
                    for number in 0..10 {
                        let number = 10 * instance + number;
                        let (request, recorder) = Recorder::request((self.0.request)(number), 1);
                        executing.execute(Arc::<Executions>::default().batch(vec![request]));
                        self.assert_answers(number, &recorder.answer());
                    }
                });
            }
        });
    }

    fn two_loads_of_a_model_are_independent(&self) {
        let (first, second) = (self.load(), self.load());
        drop(first);
        self.assert_answers(7, &self.execute(&*second, vec![(self.0.request)(7)])[0]);
    }
}

/// Executes on a new instance, which ends before this returns.
fn execute(model: &dyn Model, instance: u8, requests: Vec<Request>, executions: &Arc<Executions>) {
    made(model, instance).execute(executions.batch(requests));
}

fn made(model: &dyn Model, number: u8) -> Box<dyn Instance> {
    instance(model, number).unwrap_or_else(|error| panic!("an instance: {error}"))
}

fn instance(model: &dyn Model, number: u8) -> Result<Box<dyn Instance>> {
    model.create_instance(InstanceContext::new(format!("m_{number}"), InstanceKind::Cpu))
}

/// A tensor as text and bytes, to be compared and shown.
type Described = (String, String, Vec<i64>, Vec<u8>);

fn contents(response: &Response) -> Vec<Described> {
    described(&response.outputs)
}

fn described(tensors: &[Tensor]) -> Vec<Described> {
    let described = tensors.iter().map(|tensor| {
        let contents =
            tensor.contiguous().unwrap_or_else(|error| panic!("output '{}': {error}", tensor.name));
        (tensor.name.clone(), tensor.data_type.to_string(), tensor.shape.to_vec(), contents.to_vec())
    });
    described.collect()
}
