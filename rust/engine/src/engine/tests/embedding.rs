//! Embeddings: the same bits alone, beside others and cut anyhow; and what is refused.

use super::super::{EmbedRequest, Pooling};
use super::*;
use crate::backend::TextPart;
use crate::error::Kind;

fn text(ids: &[u32], pooling: Option<Pooling>) -> EmbedRequest {
    EmbedRequest {
        ids: ids.to_vec(),
        pooling,
        dimensions: None,
        normalize: true,
        priority: 0,
        asked: None,
    }
}

fn begin(engine: &Engine, request: &EmbedRequest) -> Ticket<Vec<f32>> {
    let ticket = engine.embed(request, None, Duration::from_secs(5));
    ticket.unwrap().expect("room in the queue")
}

fn bits(ticket: &Ticket<Vec<f32>>) -> Vec<u32> {
    match ticket.next(Duration::from_secs(60)).unwrap() {
        Wait::Item(vector) => vector.into_iter().map(f32::to_bits).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_beside_others() {
    let engine = engine(3);
    let n_embd = engine.loaded().n_embd;
    let texts: Vec<Vec<u32>> = [1, 2, 33, 130, N_CTX]
        .map(|n| (0..n).map(|i| (i * 7 + n) % 250).collect())
        .into();
    for pooling in [Pooling::Last, Pooling::Mean] {
        let requests: Vec<_> = texts.iter().map(|ids| text(ids, Some(pooling))).collect();
        let alone: Vec<_> = requests.iter().map(|r| bits(&begin(&engine, r))).collect();
        assert!(alone.iter().all(|vector| vector.len() == n_embd));
        assert_ne!(alone[0], alone[1]);
        let busy = submit(&engine, &request("go on", 150, 1));
        let tickets: Vec<_> = requests.iter().map(|r| begin(&engine, r)).collect();
        let together: Vec<_> = tickets.iter().map(bits).collect();
        assert!(alone == together, "{pooling:?}");
        finish(&busy).unwrap();
    }
    // Of one token there is one state.
    let one = |pooling| bits(&begin(&engine, &text(&[9], Some(pooling))));
    assert_eq!(one(Pooling::Last), one(Pooling::Mean));
    let stats = engine.stats().unwrap();
    assert_eq!((stats.running, stats.pages.sequences), (0, 0));
}

#[test]
fn the_backend_may_be_fed_in_any_pieces() {
    let folder = fixture::Folder::new();
    let path = folder.write("tiny.gguf", &model(|_, _| {}));
    let model = Arc::new(Model::open(&path).unwrap());
    let runner = RunnerOptions {
        n_slots: 1,
        n_ctx: 200,
        n_pages: crate::backend::pool_pages(1, 200),
        windows: None,
        kv_type: options(1).kv_type().unwrap(),
        threads: 1,
        gpu: crate::backend::GpuOptions::default(),
    };
    let plan = Arc::new(arch::plan(&model.config().unwrap()).unwrap());
    let mut backend = CpuBackend::new(plan, model, &runner).unwrap();
    backend
        .map_pages(crate::backend::Kind::Whole, 0, 0, &[1, 2, 3, 4])
        .unwrap();
    let ids: Vec<u32> = (0..200).map(|i| i * 11 % 250).collect();
    let mut hidden = |range: std::ops::Range<usize>, wanted| {
        let part = TextPart {
            slot: 0,
            tokens: &ids[range.clone()],
            start: range.start,
            wanted,
            second: usize::MAX,
        };
        backend.hidden(&[part]).unwrap().remove(0).unwrap()
    };
    let whole = hidden(0..200, 200);
    let width = whole.len() / 200;
    for pieces in [[1, 199], [64, 136], [150, 50]] {
        let mut start = 0;
        for n in pieces {
            let states = hidden(start..start + n, n);
            let wanted = &whole[start * width..][..n * width];
            assert!(states == wanted, "{n} from {start}");
            start += n;
        }
        let last = hidden(150..200, 1);
        assert!(last == whole[199 * width..]);
        assert!(hidden(0..150, 0).is_empty());
    }
}

#[test]
fn what_cannot_be_embedded_is_refused_with_its_numbers() {
    let engine = engine(1);
    let refused = |request: &EmbedRequest| {
        let found = engine.embed(request, None, Duration::ZERO);
        found.err().map(|e| (e.kind(), e.to_string())).unwrap()
    };
    let (kind, said) = refused(&text(&[1; 260], None));
    assert_eq!(kind, Kind::Context);
    assert!(
        said.starts_with("the text has 260 tokens, but the context holds 200; shorten it by 60")
    );
    assert!(said.ends_with("the model was trained for 200, the largest possible n_ctx"));
    for (request, said) in [
        (text(&[], None), "text = no token: "),
        (
            text(&[1, 4000], None),
            "text = token 4000: the vocabulary has",
        ),
        (
            EmbedRequest {
                dimensions: Some(0),
                ..text(&[1], None)
            },
            "dimensions = 0: must be from 1 to ",
        ),
        (
            EmbedRequest {
                dimensions: Some(5000),
                ..text(&[1], None)
            },
            "dimensions = 5000: must be from 1 to ",
        ),
        (
            EmbedRequest {
                priority: 101,
                ..text(&[1], None)
            },
            "priority = 101: ",
        ),
    ] {
        let (kind, found) = refused(&request);
        assert_eq!(kind, Kind::Argument);
        assert!(found.starts_with(said), "{found}");
    }
    engine.close();
    assert_eq!(refused(&text(&[1], None)).0, Kind::Closed);
}

#[test]
fn a_text_that_is_dropped_gives_its_place_to_others() {
    let engine = engine(1);
    let long: Vec<u32> = (0..200).collect();
    for _ in 0..20 {
        drop(begin(&engine, &text(&long, None)));
    }
    let wanted = bits(&begin(&engine, &text(&[1, 2], None)));
    assert_eq!(wanted, bits(&begin(&engine, &text(&[1, 2], None))));
    let ticket = begin(&engine, &text(&long, None));
    ticket.cancel();
    while let Wait::Item(_) | Wait::TimedOut = ticket.next(POLL).unwrap() {}
    assert_eq!(engine.stats().unwrap().running, 0);
}
