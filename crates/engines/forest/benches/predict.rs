//! Rows a second of a forest, one by one and in batches: `cargo bench -p nereid-forest [FILE]`. Without a file, a forest of 500
//! trees, 8 deep, of 30 features.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use nereid_backend_api::{Backend as _, DataType, InferRequest, InstanceContext, InstanceKind, Tensor};
use nereid_forest::ForestBackend;
use nereid_testkit::{Executions, Recorder};

const TREES: usize = 500;
const DEPTH: usize = 8;
const FEATURES: usize = 30;

fn main() {
    let file = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("1")).unwrap();
    let name =
        file.as_deref().map_or("model.txt", |file| Path::new(file).file_name().unwrap().to_str().unwrap());
    let model = file.as_deref().map_or_else(|| forest().into_bytes(), |file| fs::read(file).unwrap());
    fs::write(folder.path().join("1").join(name), model).unwrap();
    let config = format!("backend: 'fil' max_batch_size: 65536 default_model_filename: '{name}'");
    let mut context = nereid_testkit::context("m", nereid_testkit::normalised("m", &config));
    context.directory = folder.path().to_owned();
    context.complete = true;
    let model = ForestBackend::default().load(context).unwrap();
    let features = model.completed_config().unwrap().input[0].dims[0] as usize;
    let mut instance = model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap();
    for rows in [1, 8, 64, 4096] {
        let values = (0..rows * features).map(|at| ((at * 7919 % 1999) as f32 / 1000.0 - 1.0).to_le_bytes());
        let contents: Vec<u8> = values.flatten().collect();
        let shape = [rows as i64, features as i64];
        let input = Tensor::new("input__0", DataType::Fp32, shape, contents);
        let executions = Arc::<Executions>::default();
        let mut run = || {
            let request = InferRequest { inputs: vec![input.clone()], ..InferRequest::default() };
            let (request, recorder) = Recorder::request(request, rows);
            instance.execute(executions.batch(vec![request]));
            black_box(recorder.answer().unwrap());
        };
        run();
        let (began, mut best) = (Instant::now(), Duration::MAX);
        while began.elapsed() < Duration::from_secs(2) {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed());
        }
        // The best run is the one that other programs disturbed least.
        println!("{rows:5} rows: {best:10.1?} a batch, {:10.0} rows/s", rows as f64 / best.as_secs_f64());
    }
}

/// A forest of full trees, as LightGBM writes it.
fn forest() -> String {
    let splits = (1 << DEPTH) - 1;
    let leaves = splits + 1;
    let mut text =
        format!("tree\nnum_tree_per_iteration=1\nmax_feature_idx={}\nobjective=binary\n", FEATURES - 1);
    for tree in 0..TREES {
        let list = |count: usize, value: &dyn Fn(usize) -> String| {
            (0..count).map(value).collect::<Vec<_>>().join(" ")
        };
        let random = |at: usize| (at * 7919 + tree * 104_729 + 13) % 1009;
        let child =
            |at: usize| if at < splits { at.to_string() } else { (-((at - splits) as i64) - 1).to_string() };
        let fields = [
            ("num_leaves", leaves.to_string()),
            ("num_cat", "0".to_owned()),
            ("split_feature", list(splits, &|at| (random(at) % FEATURES).to_string())),
            ("threshold", list(splits, &|at| (random(at) as f64 / 504.5 - 1.0).to_string())),
            ("decision_type", list(splits, &|_| "10".to_owned())),
            ("left_child", list(splits, &|at| child(2 * at + 1))),
            ("right_child", list(splits, &|at| child(2 * at + 2))),
            ("leaf_value", list(leaves, &|at| (random(at) as f64 / 1e5 - 5e-3).to_string())),
        ];
        write!(text, "\nTree={tree}\n").unwrap();
        for (key, value) in fields {
            writeln!(text, "{key}={value}").unwrap();
        }
    }
    text + "\nend of trees\n"
}
