//! `/v1/rerank`, `/v1/score` and their other paths: how well documents fit a query, by a model of pairs of texts.

use std::sync::Arc;

use hyper::StatusCode;
use nereid_core::backend_api::{DataType, InferRequest, Response};
use nereid_core::{InputSignature, Model};
use nereid_http::{Call, Reply, RequestBody, reply};
use nereid_text_encoder::Scoring;
use serde::{Deserialize, Serialize};

use crate::OpenAi;
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, Refusal, Request, random_id};
use crate::fields::Fields;
use crate::tensors;
use crate::tokenized::{self, Item, Job, Kind};
use crate::traces::Traces;

/// The names of the inputs of a pair, in the order of preference.
const PAIRS: [(&str, &str); 6] = [
    ("query", "document"),
    ("query", "documents"),
    ("query", "passage"),
    ("query", "text"),
    ("text_1", "text_2"),
    ("text", "text_pair"),
];

/// The names of the output with the scores.
pub(crate) const SCORES: [&str; 4] = ["score", "scores", "relevance_score", "logits"];

/// The most documents of a request.
const MOST_DOCUMENTS: usize = 2048;

/// The contract of a model that scores pairs of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairContract {
    query: &'static str,
    document: &'static str,
    score: &'static str,
    /// How many pairs a request may have.
    batch: usize,
}

/// A request, ready to be sent to its model.
struct Plan {
    work: Work,
    /// The documents, if the client wants them back.
    documents: Vec<String>,
    top: usize,
}

/// The work for the model.
enum Work {
    /// Pairs of texts.
    Requests(PairContract, Vec<InferRequest>),
    /// Tokens.
    Job(Job),
}

impl PairContract {
    /// The contract of a model; `None` if the model scores no pairs.
    pub(crate) fn of(model: &Model) -> Option<Self> {
        let signature = model.signature();
        let (query, document) = PAIRS.into_iter().find(|(query, document)| {
            let required = signature.inputs.iter().filter(|input| !input.optional);
            let mut required = required.map(|input| input.name.as_str());
            [*query, *document].iter().all(|name| signature.input(name).is_some())
                && required.all(|name| name == *query || name == *document)
        })?;
        let size = |name| tensors::batch_size(signature, signature.input(name)?);
        let batch = size(query)?.min(size(document)?);
        let is_numbers = |name: &&str| {
            let output = signature.output(name);
            output.is_some_and(|output| matches!(output.data_type, DataType::Fp32 | DataType::Fp16))
        };
        let score = SCORES.into_iter().find(is_numbers)?;
        Some(Self { query, document, score, batch })
    }

    fn find(model: &Model, name: &str) -> Outcome<Self> {
        Self::of(model).ok_or_else(|| {
            let message = format!(
                "model '{name}' scores no pairs of texts: that takes BYTES inputs such as 'query' and 'document', and an output \
                 'score' of floating-point numbers, or the inputs and outputs of a cross-encoder with tokenizer.json beside it"
            );
            Failure::invalid_field("model", message)
        })
    }

    /// The requests for the scores of these pairs, in order. One query is paired with every document.
    fn requests(self, model: &Model, queries: &[String], documents: &[String]) -> Outcome<Vec<InferRequest>> {
        let signature = model.signature();
        let input = |name: &str| -> Outcome<&InputSignature> {
            signature.input(name).ok_or_else(|| Failure::broken_model("the model has lost an input"))
        };
        let (query, document) = (input(self.query)?, input(self.document)?);
        let pairs: Vec<(&String, &String)> = pairs(queries, documents).collect();
        let requests = pairs.chunks(self.batch.min(pairs.len()).max(1)).map(|pairs| {
            let (queries, documents): (Vec<&String>, Vec<&String>) = pairs.iter().copied().unzip();
            let inputs = vec![
                tensors::batch(signature, query, &queries)?,
                tensors::batch(signature, document, &documents)?,
            ];
            Ok(InferRequest { inputs, ..InferRequest::default() })
        });
        requests.collect()
    }

    /// The scores in a response.
    fn read(self, response: &Response) -> Outcome<Vec<f32>> {
        let Some(output) = response.outputs.iter().find(|output| output.name == self.score) else {
            return Ok(Vec::new());
        };
        Ok(tensors::floats(output)?.unwrap_or_default())
    }
}

/// A document, alone or as an object.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Object { text: String },
}

/// One text or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(Text),
    Many(Vec<Text>),
}

impl Texts {
    fn into_list(self) -> Vec<String> {
        let all = match self {
            Self::One(text) => vec![text],
            Self::Many(all) => all,
        };
        let texts = all.into_iter().map(|text| match text {
            Text::Plain(text) | Text::Object { text } => text,
        });
        texts.collect()
    }
}

/// Takes texts from the first of these fields that the request has.
fn take_texts(fields: &mut Fields<'_>, names: [&'static str; 2]) -> Outcome<Vec<String>> {
    let [name, _] = names;
    for name in names {
        let Some(texts) = fields.take::<Texts>(name)? else { continue };
        let texts = texts.into_list();
        if texts.is_empty() || texts.len() > MOST_DOCUMENTS {
            let message = format!("'{name}' has {} texts, but must have 1 to {MOST_DOCUMENTS}", texts.len());
            return Err(Failure::invalid_field(name, message));
        }
        return Ok(texts);
    }
    Err(Failure::invalid_field(name, format!("'{name}' is missing")))
}

/// The pairs of a query and each document, or of queries and documents at the same place.
fn pairs<'t>(
    queries: &'t [String],
    documents: &'t [String],
) -> impl Iterator<Item = (&'t String, &'t String)> {
    let one = if let [one] = queries { Some(one) } else { None };
    documents
        .iter()
        .enumerate()
        .filter_map(move |(place, document)| Some((one.or_else(|| queries.get(place))?, document)))
}

/// The work for the scores of these pairs. Reads the fields that only some models know.
fn work(
    request: &Request,
    fields: &mut Fields<'_>,
    queries: &[String],
    documents: &[String],
    field: &'static str,
) -> Outcome<Work> {
    let model = request.profile.token_model(&request.name)?.filter(|model| model.scores());
    let Some(model) = model else {
        let contract = PairContract::find(&request.model, &request.name)?;
        return Ok(Work::Requests(contract, contract.requests(&request.model, queries, documents)?));
    };
    let truncation = tokenized::truncation(fields, &model.text().encoder)?;
    let is_raw = fields.take("raw_scores")?.unwrap_or(false);
    let kind = Kind::Scores(if is_raw { Scoring::Raw } else { Scoring::Activated });
    let mut last: Option<Arc<str>> = None;
    let items = pairs(queries, documents).map(|(query, document)| {
        // One query is shared by all documents.
        let query = last.take().filter(|last| **last == **query).unwrap_or_else(|| Arc::from(query.as_str()));
        last = Some(Arc::clone(&query));
        Item::Pair(query, document.clone())
    });
    let items = items.collect();
    Ok(Work::Job(Job { model: Arc::clone(model), items, truncation, kind, field }))
}

fn plan_rerank(request: &Request) -> Outcome<Plan> {
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model", "user"]);
    let query: Option<String> = fields.take("query")?;
    let query = query.ok_or_else(|| Failure::invalid_field("query", "'query' is missing"))?;
    let documents = take_texts(&mut fields, ["documents", "texts"])?;
    let top = fields.take("top_n")?.unwrap_or(usize::MAX);
    let returns_documents = fields.take("return_documents")?.unwrap_or(true);
    let work = work(request, &mut fields, &[query], &documents, "documents")?;
    fields.end()?;
    let documents = if returns_documents { documents } else { Vec::new() };
    Ok(Plan { work, documents, top })
}

fn plan_score(request: &Request) -> Outcome<Plan> {
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model", "user"]);
    let queries = take_texts(&mut fields, ["text_1", "queries"])?;
    let documents = take_texts(&mut fields, ["text_2", "documents"])?;
    if queries.len() != 1 && queries.len() != documents.len() {
        let message = format!(
            "'text_1' has {} texts and 'text_2' {}, but must have one, or as many",
            queries.len(),
            documents.len()
        );
        return Err(Failure::invalid_field("text_1", message));
    }
    let work = work(request, &mut fields, &queries, &documents, "text_2")?;
    fields.end()?;
    Ok(Plan { work, documents: Vec::new(), top: usize::MAX })
}

/// The scores of all pairs, in order, and the number of their tokens if the face made them.
async fn scores(exchange: &mut Exchange<'_>, work: Work) -> Result<(Vec<f32>, Option<Usage>), Refusal> {
    let (contract, requests) = match work {
        Work::Requests(contract, requests) => (contract, requests),
        Work::Job(job) => {
            let (scores, tokens) = job.run(exchange).await?;
            let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
            return Ok((scores.into_iter().flatten().collect(), Some(usage)));
        }
    };
    let mut streams = Vec::with_capacity(requests.len());
    for request in requests {
        let pairs = request.inputs.first().and_then(|input| input.shape.element_count()).unwrap_or(0);
        streams.push((exchange.infer(request)?, pairs));
    }
    let mut scores = Vec::new();
    for (mut answers, pairs) in streams {
        let found = contract.read(&answers.single().await?)?;
        if found.len() != pairs {
            let message = format!("the model returned {} scores for {pairs} pairs", found.len());
            return Err(Failure::broken_model(message).into());
        }
        scores.extend(found);
    }
    Ok((scores, None))
}

/// The tokens of a request.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// Answers a request to order documents.
///
/// # Errors
/// The reply to a request that is refused or has failed.
pub(crate) async fn rerank(
    face: &OpenAi,
    call: &Call<'_>,
    body: RequestBody,
    traces: &Traces,
) -> Result<Reply, Refusal> {
    #[derive(Serialize)]
    struct Document<'a> {
        id: String,
        model: &'a str,
        results: Vec<Ranked<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    }
    #[derive(Serialize)]
    struct Ranked<'a> {
        index: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        document: Option<Shown<'a>>,
        relevance_score: f32,
    }
    #[derive(Serialize)]
    struct Shown<'a> {
        text: &'a str,
    }
    let mut exchange = Exchange::begin(face, call, body, traces).await?;
    let Plan { work, documents, top } = exchange.plan(plan_rerank).await?;
    let (scores, usage) = scores(&mut exchange, work).await?;
    let ranked = scores.into_iter().enumerate().map(|(index, relevance_score)| Ranked {
        index,
        document: documents.get(index).map(|text| Shown { text }),
        relevance_score,
    });
    let mut results: Vec<_> = ranked.collect();
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    results.truncate(top);
    let document = Document { id: random_id("rerank-"), model: &exchange.name, results, usage };
    Ok(reply::json(StatusCode::OK, &document))
}

/// Answers a request for the scores of pairs.
///
/// # Errors
/// The reply to a request that is refused or has failed.
pub(crate) async fn score(
    face: &OpenAi,
    call: &Call<'_>,
    body: RequestBody,
    traces: &Traces,
) -> Result<Reply, Refusal> {
    #[derive(Serialize)]
    struct Document<'a> {
        id: String,
        object: &'static str,
        created: u64,
        model: &'a str,
        data: Vec<Score>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    }
    #[derive(Serialize)]
    struct Score {
        index: usize,
        object: &'static str,
        score: f32,
    }
    let mut exchange = Exchange::begin(face, call, body, traces).await?;
    let Plan { work, .. } = exchange.plan(plan_score).await?;
    let (scores, usage) = scores(&mut exchange, work).await?;
    let data = scores.into_iter().enumerate().map(|(index, score)| Score { index, object: "score", score });
    let document = Document {
        id: random_id("score-"),
        object: "list",
        created: crate::now(),
        model: &exchange.name,
        data: data.collect(),
        usage,
    };
    Ok(reply::json(StatusCode::OK, &document))
}
