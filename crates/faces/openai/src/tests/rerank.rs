//! Scores of pairs of texts.

use super::*;

fn pairs(more: &str) -> String {
    format!(
        r#"input [
            {{ name: "query" data_type: TYPE_STRING dims: 1 }},
            {{ name: "document" data_type: TYPE_STRING dims: 1 }}
        ]
        output [{{ name: "score" data_type: TYPE_FP32 dims: 1 }}] {more}"#
    )
}

/// The score of a pair is the sum of the lengths of its texts.
fn lengths(request: Request) {
    let lengths: Vec<Vec<usize>> = request
        .inputs
        .iter()
        .map(|input| {
            BytesElements::new(&input.contiguous().unwrap()).map(|text| text.unwrap().len()).collect()
        })
        .collect();
    let scores = lengths[0].iter().zip(&lengths[1]).map(|(query, document)| (query + document) as f32);
    let bytes: Vec<u8> = scores.flat_map(f32::to_le_bytes).collect();
    let shape = request.inputs[0].shape.clone();
    request.answer(Ok(Response::new(vec![Tensor::new("score", DataType::Fp32, shape, bytes)])));
}

#[tokio::test]
async fn documents_are_ordered_by_their_scores() {
    for (more, requests) in [("", 3), ("max_batch_size: 2", 2), ("max_batch_size: 8", 1)] {
        let site = site(&pairs(more), lengths).await;
        let request =
            json!({"model": "bare", "query": "q", "documents": ["a", "bcd", {"text": "ef"}], "top_n": 2});
        let json = site.post("/v1/rerank", &request).await.json();
        assert_eq!(
            json["results"],
            json!([{"index": 1, "document": {"text": "bcd"}, "relevance_score": 4.0},
                {"index": 2, "document": {"text": "ef"}, "relevance_score": 3.0}]),
            "{json}"
        );
        assert_eq!(site.seen.lock().unwrap().len(), requests, "{more}");
        let request = json!({"model": "bare", "query": "q", "texts": ["a"], "return_documents": false});
        for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
            let json = site.post(path, &request).await.json();
            assert_eq!(json["results"], json!([{"index": 0, "relevance_score": 2.0}]), "{path}");
        }
    }
}

#[tokio::test]
async fn pairs_are_scored_in_order() {
    let site = site(&pairs("max_batch_size: 8"), lengths).await;
    for (first, second, expected) in [
        (json!("q"), json!("ab"), vec![3.0]),
        (json!("q"), json!(["ab", "c"]), vec![3.0, 2.0]),
        (json!(["q", "rs"]), json!(["ab", "c"]), vec![3.0, 3.0]),
    ] {
        let request = json!({"model": "bare", "text_1": first, "text_2": second});
        let json = site.post("/v1/score", &request).await.json();
        assert_eq!(site.post("/score", &request).await.json()["data"], json["data"]);
        let scores: Vec<_> =
            json["data"].as_array().unwrap().iter().map(|entry| entry["score"].as_f64().unwrap()).collect();
        assert_eq!((json["object"].as_str(), scores), (Some("list"), expected));
    }
}

#[tokio::test]
async fn wrong_requests_and_models_are_refused_by_name() {
    let site = site(&pairs(""), lengths).await;
    for (path, request, param) in [
        ("rerank", json!({"model": "bare", "documents": ["a"]}), "query"),
        ("rerank", json!({"model": "bare", "query": "q"}), "documents"),
        ("rerank", json!({"model": "bare", "query": "q", "documents": []}), "documents"),
        ("rerank", json!({"model": "bare", "query": "q", "documents": [1]}), "documents"),
        (
            "rerank",
            json!({"model": "bare", "query": "q", "documents": ["a"], "max_chunks_per_doc": 1}),
            "max_chunks_per_doc",
        ),
        ("rerank", json!({"model": "plain", "query": "q", "documents": ["a"]}), "model"),
        ("score", json!({"model": "bare", "text_1": "a"}), "text_2"),
        ("score", json!({"model": "bare", "text_1": ["a", "b"], "text_2": ["c"]}), "text_1"),
    ] {
        let answer = site.post(&format!("/v1/{path}"), &request).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{request}: {}",
            answer.body
        );
    }
    assert!(site.seen.lock().unwrap().is_empty());
}
