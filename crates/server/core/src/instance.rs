//! Instances of a model: planning, creation, and the threads they execute on.

mod continuous;
mod kept;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Batch, BatchMonitor, Error, Instance, InstanceContext, InstanceKind, ModelCapabilities, ModelConfig,
    Request, Result,
};
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_instance_group::Kind;

use self::continuous::Runner;
use self::kept::Planned;
use crate::host_policies::{PlacedInstance, in_place};
use nereid_scheduling::Scheduler;
use nereid_scheduling::rate_limiter::{Need, Needs};
use nereid_scheduling::shedding::ServiceTime;
use nereid_statistics::on_instance;

/// The configured instances on a machine with these GPUs: one on the CPU if none is configured.
///
/// They are named as in the reference: the group's name, or `<model>_<group>` if it has none, followed by the number of the
/// instance. Each has the resources that it needs to execute, if executions are limited.
///
/// # Errors
/// `InvalidArg` for a group on a GPU that is not available.
pub(crate) fn plan_instances(
    model: &str,
    config: &ModelConfig,
    gpus: &[i32],
) -> Result<Vec<(InstanceContext, Needs)>> {
    if config.instance_group.is_empty() {
        let name = format!("{model}_0");
        let needs = Needs { instance: name.clone(), ..Needs::default() };
        return Ok(vec![(InstanceContext::new(name, InstanceKind::Cpu), needs)]);
    }
    let mut instances = Vec::new();
    for (index, group) in config.instance_group.iter().enumerate() {
        let prefix = group_name(model, index, group);
        let kinds = kinds(&prefix, group, gpus)?;
        let limiter = group.rate_limiter.as_ref();
        let resources = limiter.into_iter().flat_map(|limiter| &limiter.resources).map(|resource| Need {
            name: resource.name.clone(),
            count: usize::try_from(resource.count).unwrap_or(usize::MAX),
            global: resource.global,
        });
        let resources: Vec<_> = resources.collect();
        let priority = limiter.map_or(0, |limiter| limiter.priority);
        for number in 0..group.count.max(1) {
            instances.extend(kinds.iter().map(|&kind| {
                let name = format!("{prefix}_{number}");
                let device = if let InstanceKind::Gpu(device) = kind { device } else { 0 };
                let needs = Needs { instance: name.clone(), device, resources: resources.clone(), priority };
                (context(name, kind, group), needs)
            }));
        }
    }
    Ok(instances)
}

fn context(name: String, kind: InstanceKind, group: &ModelInstanceGroup) -> InstanceContext {
    let mut context = InstanceContext::new(name, kind);
    context.passive = group.passive;
    context.profiles.clone_from(&group.profile);
    context.secondary_devices.clone_from(&group.secondary_devices);
    if !group.host_policy.is_empty() {
        context.host_policy.name.clone_from(&group.host_policy);
    }
    context
}

/// The groups whose instances cannot be made on a machine with these GPUs, by index, and why.
pub(crate) fn refused_groups(
    model: &str,
    config: &ModelConfig,
    gpus: &[i32],
) -> impl Iterator<Item = (usize, Error)> {
    config.instance_group.iter().enumerate().filter_map(move |(index, group)| {
        let refused = kinds(&group_name(model, index, group), group, gpus).err()?;
        Some((index, refused))
    })
}

fn group_name(model: &str, index: usize, group: &ModelInstanceGroup) -> String {
    if group.name.is_empty() { format!("{model}_{index}") } else { group.name.clone() }
}

/// The GPUs of the machine that instances of a model run on.
pub(crate) fn gpus_of<'a>(config: &'a ModelConfig, gpus: &'a [i32]) -> impl Iterator<Item = i32> + 'a {
    let groups = config.instance_group.iter().filter(|group| group.kind() == Kind::Gpu);
    groups.flat_map(move |group| if group.gpus.is_empty() { gpus } else { &group.gpus }).copied()
}

/// The devices of a group. `count` instances run on each of them.
fn kinds(name: &str, group: &ModelInstanceGroup, gpus: &[i32]) -> Result<Vec<InstanceKind>> {
    match group.kind() {
        Kind::Auto | Kind::Cpu => return Ok(vec![InstanceKind::Cpu]),
        Kind::Model => return Ok(vec![InstanceKind::Model]),
        Kind::Gpu => {}
    }
    if gpus.is_empty() {
        return Err(Error::invalid_arg(format!(
            "instance group '{name}': KIND_GPU, but no GPU is available; use KIND_CPU or KIND_AUTO"
        )));
    }
    let wanted = if group.gpus.is_empty() { gpus } else { &group.gpus };
    if let Some(missing) = wanted.iter().find(|gpu| !gpus.contains(gpu)) {
        let gpus: Vec<_> = gpus.iter().map(ToString::to_string).collect();
        return Err(Error::invalid_arg(format!(
            "instance group '{name}': GPU {missing} is not available (GPUs: {})",
            gpus.join(", ")
        )));
    }
    Ok(wanted.iter().copied().map(InstanceKind::Gpu).collect())
}

/// Makes instances, side by side where the model likes it.
fn create(
    model: &dyn nereid_backend_api::Model,
    instances: Vec<PlacedInstance>,
) -> Result<Vec<Box<dyn Instance>>> {
    let create = |instance: PlacedInstance| {
        let PlacedInstance { context, placement } = instance;
        in_place(&placement, || model.create_instance(context))
    };
    if !model.capabilities().creates_instances_in_parallel {
        return instances.into_iter().map(create).collect();
    }
    thread::scope(|scope| {
        let create = |instance| scope.spawn(move || create(instance));
        let threads: Vec<_> = instances.into_iter().map(create).collect();
        // Joins all of them, then propagates a panic, as with a single thread.
        let created: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect();
        created.into_iter().collect()
    })
}

/// A model with its instances. Each instance executes one batch at a time: on its own thread, or on the thread of
/// the holder of a [`Claim`] to it.
pub(crate) struct Pool {
    // Dropped in this order: a backend may count on its model to outlive the instances.
    slots: Vec<Slot>,
    /// Instances that receive no requests. A backend may use them for its own purposes.
    passive: Vec<Slot>,
    model: Arc<dyn nereid_backend_api::Model>,
    capabilities: ModelCapabilities,
    monitor: Arc<dyn BatchMonitor>,
    /// Whether the instances take requests by themselves.
    is_continuous: bool,
    cost: Cost,
    service: Arc<ServiceTime>,
}

type SharedInstance = Arc<Mutex<Box<dyn Instance>>>;

struct Slot {
    /// The context it was created with, and its placement.
    placed: PlacedInstance,
    /// Locked only by the thread that the scheduler lets execute. So the lock is contended only while an instance goes from
    /// one pool to the next, which both have requests for it.
    instance: SharedInstance,
    /// Whether another pool had it before.
    is_kept: bool,
    /// See [`Instance::executes_continuously`].
    is_continuous: bool,
}

impl Slot {
    fn name(&self) -> &str {
        &self.placed.context.name
    }
}

/// An execution that takes less than this is done before another thread would have begun it.
const AT_ONCE: Duration = Duration::from_micros(20);

impl Pool {
    /// Creates all instances except those `kept` from a pool of the same model. If one fails, none remains.
    pub(crate) fn new(
        model: Arc<dyn nereid_backend_api::Model>,
        instances: Vec<PlacedInstance>,
        kept: Option<&Self>,
        monitor: Arc<dyn BatchMonitor>,
    ) -> Result<Self> {
        let planned = kept::plan(instances, kept.map(Self::all_slots).unwrap_or_default());
        let new = planned.iter().filter(|planned| planned.kept.is_none());
        let mut new = create(&*model, new.map(|planned| planned.placed.clone()).collect())?.into_iter();
        let (mut slots, mut passive) = (Vec::new(), Vec::new());
        for Planned { placed, kept } in planned {
            let is_kept = kept.is_some();
            let made = || {
                let instance = new.next()?;
                let is_continuous = instance.executes_continuously();
                Some((Arc::new(Mutex::new(instance)), is_continuous))
            };
            let kept = kept.map(|slot| (Arc::clone(&slot.instance), slot.is_continuous));
            let Some((instance, is_continuous)) = kept.or_else(made) else {
                return Err(Error::internal(format!("instance '{}' was not made", placed.context.name)));
            };
            let slots = if placed.context.passive { &mut passive } else { &mut slots };
            slots.push(Slot { placed, instance, is_kept, is_continuous });
        }
        let is_continuous = slots.first().is_some_and(|slot: &Slot| slot.is_continuous);
        let differing = slots.windows(2).find_map(|pair| match pair {
            [one, other] if one.is_continuous != other.is_continuous => Some((one, other)),
            _ => None,
        });
        if let Some((one, other)) = differing {
            return Err(Error::internal(format!(
                "instances '{}' and '{}' differ: either all instances of a model execute continuously, or none",
                one.name(),
                other.name()
            )));
        }
        let capabilities = model.capabilities();
        Ok(Self {
            slots,
            passive,
            model,
            capabilities,
            monitor,
            is_continuous,
            cost: Cost::default(),
            service: Arc::default(),
        })
    }

    fn all_slots(&self) -> Vec<&Slot> {
        self.slots.iter().chain(&self.passive).collect()
    }

    /// Whether the instances take requests by themselves.
    pub(crate) fn is_continuous(&self) -> bool {
        self.is_continuous
    }

    #[expect(clippy::indexing_slicing, reason = "a scheduler has as many instances as its pool has slots")]
    fn slot(&self, instance: usize) -> &Slot {
        &self.slots[instance]
    }

    /// The average of execution times.
    pub(crate) fn service(&self) -> &Arc<ServiceTime> {
        &self.service
    }

    /// Whether another pool had the instance before.
    pub(crate) fn is_kept(&self, instance: usize) -> bool {
        self.slot(instance).is_kept
    }

    /// The model that the instances share.
    pub(crate) fn model(&self) -> Arc<dyn nereid_backend_api::Model> {
        Arc::clone(&self.model)
    }

    /// How many instances are given requests.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether executing the request costs less than handing it to another thread: recent executions of the model were short,
    /// its backend will not block on this request, and its instances may execute anywhere.
    pub(crate) fn runs_at_once(&self, request: &Request) -> bool {
        !self.is_continuous
            && self.cost.mean() < AT_ONCE
            && self.slots.iter().all(|slot| slot.placed.placement.is_any())
            && self.model.runs_at_once(request)
            && !request.touches_device()
    }

    /// Takes executions to have been that long of late.
    #[cfg(test)]
    pub(crate) fn pretend_cost(&self, mean: Duration) {
        self.cost.0.store(u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Executes requests on the calling thread.
    pub(crate) fn execute(&self, instance: usize, requests: Vec<Request>) {
        let start = Instant::now();
        self.execute_uncounted(instance, requests, Arc::clone(&self.monitor));
        let took = start.elapsed();
        if self.is_news(took) {
            self.cost.add(took);
            self.service.add(took);
        }
    }

    /// Whether an execution time belongs into the averages. Of those that are short, as the ones before, every eighth does:
    /// threads that execute at once would otherwise pass the averages around with each request.
    fn is_news(&self, took: Duration) -> bool {
        thread_local!(static EXECUTIONS: Cell<u8> = const { Cell::new(0) });
        if took >= AT_ONCE || self.cost.mean() >= AT_ONCE || self.service.mean().is_none() {
            return true;
        }
        let executions = EXECUTIONS.get().wrapping_add(1);
        EXECUTIONS.set(executions);
        executions.is_multiple_of(8)
    }

    /// Executes requests where the instance belongs. Reports to `monitor` only.
    ///
    /// # Errors
    /// The system refuses the instance's place.
    pub(crate) fn execute_in_place(
        &self,
        instance: usize,
        requests: Vec<Request>,
        monitor: Arc<dyn BatchMonitor>,
    ) -> Result<()> {
        in_place(&self.slot(instance).placed.placement, || {
            self.execute_uncounted(instance, requests, monitor);
            Ok(())
        })
    }

    /// Executes requests on the calling thread. Reports to `monitor` only.
    fn execute_uncounted(&self, instance: usize, requests: Vec<Request>, monitor: Arc<dyn BatchMonitor>) {
        let slot = self.slot(instance);
        let mut batch = Batch::new(requests, monitor);
        batch.copy_inputs_for(&self.capabilities);
        if batch.requests().is_empty() {
            return;
        }
        let mut executing = slot.instance.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropping a batch after a panic answers its requests; the instance continues with the next batch.
        if catch_unwind(AssertUnwindSafe(|| executing.execute(batch))).is_err() {
            tracing::error!("instance '{}' panicked; its requests were answered with an error", slot.name());
        }
    }

    /// Starts the thread of an instance. It ends when the scheduler is closed and empty.
    pub(crate) fn spawn(
        self: Arc<Self>,
        instance: usize,
        scheduler: Arc<dyn Scheduler>,
    ) -> io::Result<JoinHandle<()>> {
        Builder::new().name(self.slot(instance).name().to_owned()).spawn(move || {
            let slot = self.slot(instance);
            if let Err(error) = slot.placed.placement.apply() {
                // It was made there, so this is news. What it is given can be answered all the same.
                tracing::error!("instance '{}': cannot apply its host policy: {error}", slot.name());
            }
            let _counters = on_instance(instance);
            if self.is_continuous {
                return self.run(instance, &scheduler);
            }
            while let Some(requests) = scheduler.next(instance) {
                self.execute(instance, requests);
            }
        })
    }

    /// Lets an instance take requests by itself, until the scheduler is closed and empty.
    fn run(&self, instance: usize, scheduler: &Arc<dyn Scheduler>) {
        let slot = self.slot(instance);
        let runner = Runner {
            name: slot.name(),
            number: instance,
            scheduler,
            monitor: &self.monitor,
            capabilities: self.capabilities,
        };
        // An instance that another pool had before runs here once that pool has ended.
        runner.run(&mut **slot.instance.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A moving average of how long executions take, in nanoseconds; 0 before the first. What lies beside it in a pool is only read,
/// so it has a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Cost(AtomicU64);

impl Cost {
    /// A new sample weighs one part in this many.
    const WEIGHT: u64 = 8;

    fn mean(&self) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::MAX,
            mean => Duration::from_nanos(mean),
        }
    }

    fn add(&self, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX).max(1);
        let mean = match self.0.load(Ordering::Relaxed) {
            0 => sample,
            mean => mean - mean / Self::WEIGHT + sample / Self::WEIGHT,
        };
        // Two samples at once may lose one of them, which does no harm to an average.
        self.0.store(mean.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_follows_the_executions_and_a_long_one_is_not_soon_forgotten() {
        let cost = Cost::default();
        assert_eq!(cost.mean(), Duration::MAX);
        cost.add(Duration::from_micros(4));
        assert_eq!(cost.mean(), Duration::from_micros(4));
        cost.add(Duration::from_millis(80));
        assert!(cost.mean() > AT_ONCE);
        (0..20).for_each(|_| cost.add(Duration::from_micros(4)));
        assert!(cost.mean() > AT_ONCE);
        (0..60).for_each(|_| cost.add(Duration::from_micros(4)));
        assert!(cost.mean() < AT_ONCE);
    }

    #[test]
    fn instances_are_named_as_the_reference_names_them() {
        let names = |text: &str| {
            let config = nereid_model_config::parse_text(text).unwrap();
            plan_instances("m", &config, &[]).unwrap().into_iter().map(|(it, _)| it.name).collect::<Vec<_>>()
        };
        assert_eq!(names(""), ["m_0"]);
        assert_eq!(names("instance_group { count: 2 } instance_group { }"), ["m_0_0", "m_0_1", "m_1_0"]);
        assert_eq!(names(r#"instance_group { name: "g" count: 2 kind: KIND_CPU }"#), ["g_0", "g_1"]);
    }

    #[test]
    fn a_group_on_gpus_has_its_instances_on_each_of_them() {
        let planned = |text: &str, gpus: &[i32]| {
            let config = nereid_model_config::parse_text(text).unwrap();
            let planned = plan_instances("m", &config, gpus)?.into_iter();
            Ok::<_, Error>(planned.map(|(it, needs)| (it.name, it.kind, needs.device)).collect::<Vec<_>>())
        };
        let on = |name: &str, gpu| (name.to_owned(), InstanceKind::Gpu(gpu), gpu);
        let both = "instance_group { name: 'g' kind: KIND_GPU count: 2 gpus: [ 0, 1 ] }";
        let expected = [on("g_0", 0), on("g_0", 1), on("g_1", 0), on("g_1", 1)];
        assert_eq!(planned(both, &[0, 1, 2]), Ok(expected.to_vec()));
        assert_eq!(planned("instance_group { kind: KIND_GPU }", &[3]), Ok(vec![on("m_0_0", 3)]));
        let refused = |text, gpus: &[i32]| planned(text, gpus).unwrap_err().message().to_owned();
        assert!(refused(both, &[]).contains("'g': KIND_GPU, but no GPU is available"));
        assert!(refused(both, &[0, 2]).contains("'g': GPU 1 is not available (GPUs: 0, 2)"));
    }
}
