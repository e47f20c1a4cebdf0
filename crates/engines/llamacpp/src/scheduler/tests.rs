//! The scheduler over a scripted engine, with time that the tests set: endings, batches, cached prefixes, failures, and 10,000
//! requests with random lengths and cancellations.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::speculation::Speculation;
use crate::testing::{Alphabet, Record, Scripted};

#[derive(Default)]
struct Outcome {
    /// The cached tokens of its prompt.
    cached: usize,
    parts: Vec<Part>,
    ended: Option<Result<Finish, Error>>,
    is_cancelled: bool,
}

impl Outcome {
    fn text(&self) -> String {
        self.parts.iter().map(|part| part.text.as_str()).collect()
    }

    fn tokens(&self) -> usize {
        self.parts.iter().map(|part| part.tokens).sum()
    }
}

#[derive(Clone, Default)]
struct Recorder(Rc<RefCell<Outcome>>);

impl Recorder {
    fn end(self, ended: Result<Finish, Error>) {
        let before = self.0.borrow_mut().ended.replace(ended);
        assert!(before.is_none(), "a request ends once");
    }
}

impl Client for Recorder {
    fn is_cancelled(&self) -> bool {
        self.0.borrow().is_cancelled
    }

    fn admitted(&mut self, cached: usize) {
        self.0.borrow_mut().cached = cached;
    }

    fn part(&mut self, part: Part) {
        self.0.borrow_mut().parts.push(part);
    }

    fn finish(self, part: Part, finish: Finish) {
        self.0.borrow_mut().parts.push(part);
        self.end(Ok(finish));
    }

    fn fail(self, error: Error) {
        self.end(Err(error));
    }
}

struct Bench {
    scheduler: Scheduler<Scripted, Recorder>,
    record: Arc<Mutex<Record>>,
    now: Instant,
}

impl Bench {
    fn new(sequences: usize, context: usize, batch: usize, time_limit: Option<Duration>) -> Self {
        Self::with(Limits { sequences, context, cache: sequences * context, batch }, time_limit)
    }

    fn with(limits: Limits, time_limit: Option<Duration>) -> Self {
        Self::guessing(limits, time_limit, None)
    }

    fn guessing(limits: Limits, time_limit: Option<Duration>, speculation: Option<Speculation>) -> Self {
        let (engine, record) = Scripted::new(limits);
        let scheduler = Scheduler::new(engine, Arc::new(Alphabet), time_limit, speculation);
        Self { scheduler, record, now: Instant::now() }
    }

    /// Saves prefixes of `least` tokens or more, up to a size in bytes.
    fn spilling(mut self, bytes: Option<u64>, least: usize) -> Self {
        let spill = bytes.map(|bytes| {
            let mut spill = Spill::new(bytes);
            spill.least = least;
            spill
        });
        self.scheduler = self.scheduler.with_spill(spill);
        self
    }

    fn admit(&mut self, prompt: &str, parameters: SamplingParameters) -> Recorder {
        self.admit_with(None, Owner::default(), prompt, parameters)
    }

    fn admit_with(
        &mut self,
        adapter: Option<usize>,
        owner: Owner,
        prompt: &str,
        parameters: SamplingParameters,
    ) -> Recorder {
        let client = Recorder::default();
        let prompt = Alphabet.tokenize(prompt, true).unwrap();
        let generation =
            Generation { client: client.clone(), prompt, parameters, owner, guide: None, adapter };
        self.scheduler.admit(generation, self.now);
        client
    }

    fn step(&mut self) {
        self.scheduler.step(self.now);
    }

    fn run(&mut self) {
        while !self.scheduler.is_idle() {
            self.step();
        }
    }

    /// Runs one request alone.
    fn complete(&mut self, prompt: &str, parameters: SamplingParameters) -> Recorder {
        let client = self.admit(prompt, parameters);
        self.run();
        client
    }

    fn batch_sizes(&self) -> Vec<usize> {
        self.record.lock().unwrap().batches.iter().map(Vec::len).collect()
    }
}

fn tokens(max_tokens: usize) -> SamplingParameters {
    SamplingParameters { temperature: 0.0, max_tokens: Some(max_tokens), ..SamplingParameters::default() }
}

fn unlimited() -> SamplingParameters {
    SamplingParameters { max_tokens: None, ..tokens(1) }
}

#[test]
fn generation_ends_by_the_model_or_by_its_parameters() {
    let stop = |stop: &str| SamplingParameters { stop: vec![stop.to_owned()], ..unlimited() };
    let stop_token = SamplingParameters { stop_tokens: vec![Token::from(b'd')], ..unlimited() };
    for (prompt, parameters, text, finish, count) in [
        ("ax", tokens(9), "yz", Finish::Stop, 3),
        ("a", tokens(3), "bcd", Finish::Length, 3),
        ("a", unlimited(), "bcdefghijklmnopqrs", Finish::Length, 18),
        ("a", stop("de"), "bc", Finish::Stop, 4),
        ("a", SamplingParameters { includes_stop: true, ..stop("de") }, "bcde", Finish::Stop, 4),
        ("a", SamplingParameters { min_tokens: 5, ..stop("d") }, "bcdefghijklmnopqrs", Finish::Length, 18),
        ("a", stop_token.clone(), "bc", Finish::Stop, 3),
        ("a", SamplingParameters { includes_stop: true, ..stop_token }, "bcd", Finish::Stop, 3),
        (
            "y",
            SamplingParameters { skips_special_tokens: false, includes_stop: true, ..tokens(5) },
            "z<end>",
            Finish::Stop,
            2,
        ),
        ("y", SamplingParameters { ignores_end: true, ..tokens(4) }, "z\u{1}\u{2}", Finish::Length, 4),
    ] {
        let mut bench = Bench::new(1, 19, 8, None);
        let client = bench.complete(prompt, parameters.clone());
        let outcome = client.0.borrow();
        let found = (outcome.text(), outcome.ended.clone(), outcome.tokens());
        assert_eq!(found, (text.to_owned(), Some(Ok(finish)), count), "{parameters:?}");
    }
}

#[test]
fn text_that_may_stop_is_held_back_but_not_lost() {
    let mut bench = Bench::new(1, 64, 8, None);
    let parameters = SamplingParameters { stop: vec!["cdx".to_owned()], ..tokens(4) };
    let client = bench.complete("a", parameters);
    let texts: Vec<String> = client.0.borrow().parts.iter().map(|part| part.text.clone()).collect();
    assert_eq!(texts, ["b", "", "", "cde"]);
    let parameters = SamplingParameters { stop: vec!["cdx".to_owned()], ..tokens(3) };
    assert_eq!(bench.complete("a", parameters).0.borrow().text(), "bcd");
}

#[test]
fn running_requests_never_wait_for_prompts() {
    let mut bench = Bench::new(3, 4096, 512, None);
    let first = bench.admit("a", tokens(20));
    bench.step();
    let prompt = "b".repeat(1000);
    let (second, third) = (bench.admit(&prompt, tokens(2)), bench.admit(&prompt, tokens(2)));
    for step in 0..8 {
        bench.step();
        assert_eq!(first.0.borrow().tokens(), 2 + step);
    }
    // The prompt that came first is complete first; the other one has its prefix.
    assert_eq!((second.0.borrow().tokens(), third.0.borrow().tokens()), (1, 0));
    assert_eq!(bench.batch_sizes(), [1, 129, 129, 129, 129, 129, 129, 129, 129]);
    bench.run();
    assert!([second, third].iter().all(|client| client.0.borrow().text() == "cd"));
}

#[test]
fn slow_engines_read_less_of_a_prompt_while_others_generate() {
    for (millis, expected) in [(0.05, 508), (1.0, 100), (20.0, 16)] {
        let mut bench = Bench::new(2, 4096, 512, None);
        let first = bench.admit("a", tokens(1000));
        bench.step();
        let second = bench.admit(&"b".repeat(3000), tokens(1));
        while second.0.borrow().ended.is_none() {
            bench.step();
            let size = bench.batch_sizes().pop().unwrap();
            bench.now += Duration::from_secs_f64(millis * f64::from(u32::try_from(size).unwrap()) / 1000.0);
        }
        let found = bench.batch_sizes()[5] - 1;
        assert!(found.abs_diff(expected) <= 4, "{millis} ms: {found}");
        assert!(first.0.borrow().tokens() > 5);
    }
}

#[test]
fn long_prompt_neither_holds_up_short_ones_nor_waits_for_them() {
    let mut bench = Bench::new(5, 4096, 512, None);
    let long = bench.admit(&"b".repeat(2000), tokens(1));
    let short = ["c", "d", "e"].map(|text| bench.admit(&text.repeat(20), tokens(1)));
    bench.step();
    assert!(short.iter().all(|client| client.0.borrow().ended == Some(Ok(Finish::Length))));
    // However many short ones follow, it gets half of each batch.
    for step in 0..=2000 / 64 {
        for text in ["f", "g", "h", "i"] {
            if bench.scheduler.room() > 0 {
                bench.admit(&text.repeat(100 + step % 7), tokens(1));
            }
        }
        bench.step();
    }
    assert!(long.0.borrow().ended.is_some());
}

#[test]
fn prompts_alone_fill_the_batch() {
    let mut bench = Bench::new(2, 4096, 512, None);
    let clients = [bench.admit(&"b".repeat(700), tokens(1)), bench.admit(&"c".repeat(500), tokens(1))];
    while !bench.scheduler.is_idle() {
        bench.step();
        bench.now += Duration::from_millis(100);
    }
    // The first batch measures the engine.
    assert_eq!(bench.batch_sizes(), [128, 512, 512, 48]);
    assert!(clients.iter().all(|client| client.0.borrow().ended == Some(Ok(Finish::Length))));
}

#[test]
fn cached_prefixes_are_evaluated_once() {
    let mut bench = Bench::new(3, 4096, 512, None);
    let evaluated = |bench: &Bench| std::mem::take(&mut bench.record.lock().unwrap().evaluated);
    let system = "s".repeat(100);
    let conversation = format!("{system}{}", "abc".repeat(20));
    bench.complete(&conversation, tokens(2));
    assert_eq!(evaluated(&bench), 160 + 1);
    // The conversation continues in its sequence.
    bench.complete(&format!("{conversation}dxy"), tokens(1));
    assert_eq!(evaluated(&bench), 2);
    // Another conversation shares the beginning, and leaves the first one in place.
    bench.complete(&format!("{system}{}", "q".repeat(150)), tokens(1));
    assert_eq!((evaluated(&bench), bench.record.lock().unwrap().shared.clone()), (150, vec![(0, 1, 100)]));
    bench.complete(&format!("{conversation}dxyzz"), tokens(1));
    assert_eq!(evaluated(&bench), 2);
    // The same prompt again: only its last token is evaluated.
    bench.complete(&format!("{conversation}dxyzz"), tokens(1));
    assert_eq!(evaluated(&bench), 1);
}

#[test]
fn cached_prefixes_are_shared_by_requests_of_one_owner() {
    let owner = |flow, salt: &str| Owner { flow, salt: salt.to_owned() };
    let owners = [owner(0, ""), owner(1, ""), owner(2, ""), owner(1, "a"), owner(2, "a"), owner(0, "1")];
    let prompt = "p".repeat(60);
    for slots in [1, 2, 3, 12] {
        let mut bench = Bench::new(slots, 4096, 512, None);
        let mut cached = |owner: &Owner, prompt: &str| {
            let client = bench.admit_with(None, owner.clone(), prompt, tokens(2));
            bench.run();
            client.0.take().cached
        };
        for one in &owners {
            assert_eq!(cached(one, &prompt), 0, "{one:?} in {slots}");
            assert_eq!(cached(one, &prompt), 59, "{one:?} in {slots}");
            assert_eq!(cached(one, &format!("{prompt}xyz")), 60, "{one:?} in {slots}");
        }
        let held = if slots == 12 { 60 } else { 0 };
        assert_eq!(cached(&owners[0], &format!("{prompt}b")), held, "{slots}");
    }
}

#[test]
fn oldest_cached_sequence_is_replaced() {
    let mut bench = Bench::new(2, 4096, 512, None);
    for prompt in ["aaaa", "bbbb", "cccc", "bbbbb"] {
        bench.complete(prompt, tokens(1));
    }
    let held = bench.record.lock().unwrap().held.clone();
    assert_eq!(held[&0], Alphabet.tokenize("cccc", true).unwrap());
    assert_eq!(held[&1], Alphabet.tokenize("bbbbb", true).unwrap());
}

#[test]
fn cancelled_requests_leave_between_two_tokens() {
    let mut bench = Bench::new(2, 64, 8, None);
    let [first, second] = [bench.admit("a", unlimited()), bench.admit("b", tokens(4))];
    bench.step();
    first.0.borrow_mut().is_cancelled = true;
    bench.step();
    assert_eq!(first.0.borrow().tokens(), 1);
    let code = first.0.borrow().ended.clone().map(|ended| ended.unwrap_err().code());
    assert_eq!(code, Some(nereid_backend_api::ErrorCode::Cancelled));
    assert!(bench.scheduler.room() > 0);
    bench.run();
    assert_eq!(second.0.borrow().text(), "cdef");
}

#[test]
fn time_limit_ends_a_request_with_what_it_has() {
    let mut bench = Bench::new(1, 64, 8, Some(Duration::from_secs(5)));
    let parameters = SamplingParameters { stop: vec!["dx".to_owned()], ..unlimited() };
    let client = bench.admit("a", parameters);
    for _ in 0..3 {
        bench.step();
    }
    bench.now += Duration::from_millis(4999);
    bench.step();
    assert_eq!((client.0.borrow().tokens(), client.0.borrow().ended.clone()), (4, None));
    bench.now += Duration::from_millis(1);
    bench.step();
    assert_eq!(
        (client.0.borrow().text(), client.0.borrow().ended.clone()),
        ("bcde".to_owned(), Some(Ok(Finish::Length)))
    );
    assert!(bench.scheduler.is_idle());
}

#[test]
fn full_cache_evicts_ended_sequences_from_the_oldest_on() {
    let mut bench = Bench::with(Limits { sequences: 4, context: 64, cache: 64, batch: 64 }, None);
    let held = |bench: &Bench| {
        let record = bench.record.lock().unwrap();
        [0, 1, 2, 3].map(|number| record.held.get(&number).map_or(0, Vec::len))
    };
    for prompt in ["a", "b", "c"] {
        bench.complete(&prompt.repeat(20), tokens(1));
    }
    assert_eq!(held(&bench), [20, 20, 20, 0]);
    bench.complete(&"d".repeat(20), tokens(1));
    assert_eq!(held(&bench), [0, 20, 20, 20]);
    bench.complete(&"e".repeat(60), tokens(1));
    assert_eq!(held(&bench), [60, 0, 0, 0]);
}

#[test]
fn last_request_pauses_while_the_cache_is_full_and_loses_nothing() {
    let mut bench = Bench::with(Limits { sequences: 3, context: 64, cache: 20, batch: 16 }, None);
    let [first, second] = [bench.admit("aaaaa", tokens(12)), bench.admit("bbbbb", tokens(12))];
    for _ in 0..8 {
        bench.step();
    }
    // The first one continues alone.
    assert!(first.0.borrow().tokens() > second.0.borrow().tokens());
    let written = second.0.borrow().tokens();
    assert!(bench.scheduler.room() == 0, "paused requests come first");
    while first.0.borrow().ended.is_none() {
        assert_eq!(second.0.borrow().tokens(), written);
        bench.step();
    }
    bench.run();
    assert_eq!(
        (first.0.borrow().text(), second.0.borrow().text()),
        ("bcdefghijklm".to_owned(), "cdefghijklmn".to_owned())
    );
    assert!(bench.scheduler.room() > 0);
}

#[test]
fn paused_request_can_be_cancelled() {
    let mut bench = Bench::with(Limits { sequences: 2, context: 64, cache: 20, batch: 16 }, None);
    let [first, second] = [bench.admit("aaaaa", tokens(12)), bench.admit("bbbbb", tokens(12))];
    for _ in 0..8 {
        bench.step();
    }
    second.0.borrow_mut().is_cancelled = true;
    bench.step();
    assert!(second.0.borrow().ended.as_ref().unwrap().is_err());
    assert!(bench.scheduler.room() > 0);
    bench.run();
    assert_eq!(first.0.borrow().text(), "bcdefghijklm");
}

#[test]
fn request_that_the_cache_alone_cannot_hold_fails() {
    let mut bench = Bench::with(Limits { sequences: 2, context: 64, cache: 10, batch: 16 }, None);
    let client = bench.complete("aaaaa", tokens(12));
    let error = client.0.borrow().ended.clone().unwrap().unwrap_err();
    assert_eq!(error.message(), "the cache of the context has no room for the request");
    assert_eq!(bench.complete("aaaaa", tokens(3)).0.borrow().text(), "bcd");
}

#[test]
fn failed_evaluation_fails_its_requests_only() {
    let mut bench = Bench::new(2, 64, 8, None);
    let clients = [bench.admit("a", tokens(3)), bench.admit("b", tokens(3))];
    bench.step();
    bench.record.lock().unwrap().outcomes = vec![DecodeError::Failed("out of memory".to_owned())];
    bench.run();
    for client in clients {
        let error = client.0.borrow().ended.clone().unwrap().unwrap_err();
        assert_eq!(error.message(), "llama.cpp failed: out of memory");
    }
    assert_eq!(bench.complete("a", tokens(3)).0.borrow().text(), "bcd");
}

#[test]
fn request_without_a_free_sequence_fails() {
    let mut bench = Bench::new(1, 64, 8, None);
    bench.admit("a", tokens(3));
    assert!(bench.scheduler.room() == 0);
    let client = bench.admit("a", tokens(3));
    assert!(client.0.borrow().ended.clone().unwrap().is_err());
}

#[test]
fn right_guesses_save_steps_and_wrong_ones_cost_none() {
    let limits = Limits { sequences: 2, context: 64, cache: 128, batch: 32 };
    // The text contains what the model writes, and then something else.
    for (prompt, parameters, text, sizes, accepted) in [
        ("abcdefgh.ab", tokens(6), "cdefgh", &[11, 5][..], 4),
        ("abcdexgh.ab", tokens(6), "cdefgh", &[11, 5, 1, 1], 2),
        ("abcxyzef.ab", tokens(6), "cdefgh", &[11, 5, 1, 1, 2, 1], 0),
        (
            "abcdefgh.ab",
            SamplingParameters { speculative_tokens: Some(2), ..tokens(6) },
            "cdefgh",
            &[11, 3, 2],
            3,
        ),
        (
            "abcdefgh.ab",
            SamplingParameters { speculative_tokens: Some(0), ..tokens(6) },
            "cdefgh",
            &[11, 1, 1, 1, 1, 1],
            0,
        ),
        ("abcdefgh.ab", SamplingParameters { stop: vec!["e".to_owned()], ..tokens(9) }, "cd", &[11, 5], 1),
    ] {
        let mut bench = Bench::guessing(limits, None, Some(Speculation::by_lookup(4)));
        let client = bench.complete(prompt, parameters);
        assert_eq!(client.0.borrow().text(), text);
        assert_eq!(
            (bench.batch_sizes(), bench.scheduler.load().guesses.accepted),
            (sizes.to_vec(), accepted),
            "{prompt}"
        );
        // The engine holds what the sequence does.
        let held = bench.record.lock().unwrap().held[&0].clone();
        assert_eq!(bench.scheduler.slots[0].tokens, held);
    }
}

#[test]
fn requests_with_different_adapters_take_turns_and_share_no_cache() {
    let mut bench = Bench::new(4, 64, 32, None);
    let prompt = "a".repeat(20);
    let adapters = [None, Some(0), Some(1), Some(0)];
    let clients = adapters.map(|adapter| bench.admit_with(adapter, Owner::default(), &prompt, tokens(5)));
    bench.run();
    let texts = clients.each_ref().map(|client| client.0.borrow().text());
    assert_eq!(texts, ["bcdef", "cegik", "dgjmp", "cegik"]);
    // Of requests with the same adapter, the second one had nothing to share yet.
    let evaluated = bench.record.lock().unwrap().evaluated;
    // Two prompts of one adapter fill two batches.
    assert_eq!((evaluated, bench.batch_sizes().len()), (4 * 24, 3 * 5 + 1));
    for adapter in adapters {
        bench.admit_with(adapter, Owner::default(), &prompt, tokens(1));
        bench.run();
    }
    assert_eq!(bench.record.lock().unwrap().evaluated, 4 * 24 + 4);
}

#[test]
fn guesses_change_nothing_that_is_drawn_at_random() {
    let limits = Limits { sequences: 1, context: 64, cache: 64, batch: 32 };
    let mut accepted = 0;
    for seed in 0..60 {
        let parameters = SamplingParameters {
            temperature: 0.5 + f32::from(u8::try_from(seed % 4).unwrap()),
            seed: Some(seed),
            repetition_penalty: 1.1,
            ..tokens(30)
        };
        let write = |speculation| {
            let mut bench = Bench::guessing(limits, None, speculation);
            let client = bench.complete("abcdefghabcdefghab", parameters.clone());
            (client.0.borrow().parts.clone(), client.0.borrow().ended.clone(), bench.scheduler.load().guesses)
        };
        let (parts, ended, _) = write(None);
        let draft = Box::new(Scripted::new(limits).0);
        for speculation in [Speculation::by_lookup(5), Speculation::by_model(5, draft, 128, 0.7)] {
            let (found, end, guesses) = write(Some(speculation));
            assert_eq!((&found, &end), (&parts, &ended));
            assert!(guesses.accepted <= guesses.tokens);
            accepted += guesses.accepted;
        }
    }
    assert!(accepted > 500, "{accepted}");
}

#[test]
fn prefixes_that_left_the_cache_are_read_from_files() {
    let owner = |flow| Owner { flow, ..Owner::default() };
    let (one, other) = ("p".repeat(300), "q".repeat(300));
    for sequences in [1, 2, 3] {
        // The cache has room for one of the prompts.
        let limits = Limits { sequences, context: 400, cache: 400, batch: 64 };
        for (bytes, expected) in [(None, 0), (Some(1000), 0), (Some(10_000), 300)] {
            let mut bench = Bench::with(limits, None).spilling(bytes, 128);
            let mut cached = |flow, adapter, prompt: &str| {
                let client = bench.admit_with(adapter, owner(flow), prompt, tokens(5));
                bench.run();
                let outcome = client.0.take();
                assert_eq!((outcome.tokens(), outcome.ended), (5, Some(Ok(Finish::Length))), "{prompt}");
                outcome.cached
            };
            cached(1, None, &one);
            cached(1, None, &other);
            let case = format!("{sequences} {bytes:?}");
            // Other owners and requests with an adapter do not find it.
            assert_eq!(cached(2, None, &format!("{one}a")), 0, "{case}");
            assert_eq!(cached(1, Some(0), &format!("{one}a")), 0, "{case}");
            assert_eq!(cached(1, None, &format!("{one}a")), expected, "{case}");
            // Prefixes of the file, and then of the cache.
            assert_eq!(cached(1, None, &format!("{}bc", &other[..200])), expected.min(200), "{case}");
            assert_eq!(cached(1, None, &format!("{}bc", &other[..100])), 100, "{case}");
            assert_eq!(bench.record.lock().unwrap().restored, if expected > 0 { 2 } else { 0 }, "{case}");
        }
    }
}

/// The behaviour of a request, in a test with many of them.
#[derive(Clone, Debug)]
struct Plan {
    prompt: String,
    max_tokens: usize,
    /// Steps until the client cancels.
    cancels_after: Option<u32>,
    /// Steps before the next request arrives.
    pause: u32,
    adapter: Option<usize>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let cancels = prop_oneof![3 => Just(None), 1 => (0_u32..12).prop_map(Some)];
    let adapter = prop_oneof![2 => Just(None), 1 => (0_usize..2).prop_map(Some)];
    ("[a-d]{1,30}", 1_usize..20, cancels, 0_u32..3, adapter).prop_map(
        |(prompt, max_tokens, cancels_after, pause, adapter)| Plan {
            prompt,
            max_tokens,
            cancels_after,
            pause,
            adapter,
        },
    )
}

/// The text that a model of the alphabet writes after a prompt.
fn expected(Plan { prompt, max_tokens, adapter, .. }: &Plan) -> String {
    let last = prompt.bytes().last().unwrap();
    let step = 1 + adapter.map_or(0, |number| number + 1);
    (last..=b'z').step_by(step).skip(1).take(*max_tokens).map(char::from).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// 10,000 requests in all.
    #[test]
    fn no_request_is_lost_and_no_sequence_leaks(
        plans in prop::collection::vec(plan(), 500),
        sequences in 1_usize..6,
        cache in 64_usize..200,
        failures in prop::collection::vec(0_usize..2000, 0..3),
        guess in 0_usize..6,
        files in prop::option::of(0_u64..3000),
    ) {
        let limits = Limits { sequences, context: 64, cache, batch: 16 };
        // Every other case guesses by a model that is right until the end of the text.
        let speculation = match guess {
            0 | 1 => None,
            2 | 3 => Some(Speculation::by_lookup(guess)),
            _ => Some(Speculation::by_model(guess, Box::new(Scripted::new(limits).0), 128, 0.7)),
        };
        let mut bench = Bench::guessing(limits, None, speculation).spilling(files, 3);
        let mut running: Vec<(Plan, Recorder, u32)> = Vec::new();
        let mut ended = Vec::new();
        let mut waiting = plans.into_iter();
        let mut next = waiting.next();
        let (mut step, mut pause) = (0, 0);
        while next.is_some() || !bench.scheduler.is_idle() {
            while pause == 0 && bench.scheduler.room() > 0 && let Some(plan) = next.take() {
                let owner = Owner { flow: u64::from(plan.pause), ..Owner::default() };
                let client = bench.admit_with(plan.adapter, owner, &plan.prompt, tokens(plan.max_tokens));
                pause = plan.pause;
                running.push((plan, client, 0));
                next = waiting.next();
            }
            pause = pause.saturating_sub(1);
            for (plan, client, age) in &mut running {
                client.0.borrow_mut().is_cancelled |= plan.cancels_after == Some(*age);
                *age += 1;
            }
            if failures.contains(&step) {
                bench.record.lock().unwrap().outcomes = vec![DecodeError::Failed(String::new())];
            }
            bench.step();
            step += 1;
            ended.extend(running.extract_if(.., |(_, client, _)| client.0.borrow().ended.is_some()));
        }
        prop_assert!(running.is_empty());
        prop_assert_eq!(ended.len(), 500);
        let mut failed = 0;
        for (plan, client, _) in ended {
            let outcome = client.0.borrow();
            let whole = expected(&plan);
            match outcome.ended.as_ref().unwrap() {
                Ok(_) => prop_assert_eq!(outcome.text(), whole),
                Err(error) => {
                    prop_assert!(whole.starts_with(&outcome.text()));
                    failed += usize::from(error.message() != "the request was cancelled");
                }
            }
        }
        prop_assert!(failed <= failures.len() * sequences);
        prop_assert!(bench.scheduler.is_idle() && bench.scheduler.room() > 0);
    }
}
