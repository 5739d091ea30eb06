//! Several cards of one host as one backend: each has its share of the plan ([`Plan::shared`]) and makes
//! the same steps from the same calls; what they need of each other their kernels exchange. The first
//! tells what became of a step.

use std::sync::Arc;
use std::time::Duration;

use super::backend::{CudaBackend, Progress};
use super::card::LoadTimes;
use super::exchange::Abort;
use crate::backend::cuda::driver::context::Context;
use crate::backend::storage::check_bytes;
use crate::backend::{
    Backend, Draft, Event, Finish, HostMemory, Kind, Limits, LogitsPath, Part, Prefaulted,
    RunnerOptions, SlotRequest, Storage, TextPart, Weights,
};
use crate::error::{Error, Result};
use crate::plan::{Plan, Share};
use crate::sampler::Allowed;

/// Decodes on several cards.
pub struct CardsBackend {
    /// By rank.
    cards: Vec<CudaBackend>,
    aborts: Vec<Abort>,
    limits: Limits,
    /// Why none of them goes on.
    broken: Option<Error>,
}

impl CardsBackend {
    /// Uploads each card's share of the model and captures the step of one row.
    ///
    /// # Errors
    /// As [`CudaBackend::new`]; [`Error::Device`] where two of them cannot reach each other's memory.
    pub fn new(
        ordinals: &[usize],
        plan: &Plan,
        weights: &dyn Weights,
        options: &RunnerOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let contexts = ordinals.iter().map(|n| Context::new(*n));
        let contexts = contexts.collect::<Result<Vec<_>>>()?;
        for a in &contexts {
            for b in contexts.iter().filter(|b| !Arc::ptr_eq(a, b)) {
                a.reach(b)?;
            }
        }
        let on = |(rank, context)| {
            let cards = ordinals.len();
            let plan = Arc::new(plan.shared(Share { rank, cards }));
            CudaBackend::on(context, plan, weights, options)
        };
        let mut cards = contexts
            .iter()
            .enumerate()
            .map(on)
            .collect::<Result<Vec<_>>>()?;
        let addresses: Vec<_> = cards
            .iter_mut()
            .map(|c| c.card().exchange_addresses())
            .collect();
        let reports: Vec<_> = cards
            .iter_mut()
            .skip(1)
            .map(|c| c.card().reports())
            .collect();
        for (rank, card) in cards.iter_mut().enumerate() {
            let heard = if rank == 0 { &reports[..] } else { &[] };
            card.card().meet(&addresses, heard);
        }
        let names: Vec<String> = ordinals.iter().map(usize::to_string).collect();
        let mut backend = Self {
            aborts: cards.iter_mut().filter_map(|c| c.card().abort()).collect(),
            limits: Limits {
                device: format!("cuda:{} ({})", names.join(","), contexts[0].info.name),
                ..cards[0].limits().clone()
            },
            cards,
            broken: None,
        };
        backend.together(
            |card| card.load(weights, options, progress),
            |card| card.load(weights, options, &|_, _, _| Ok(())),
        )?;
        Ok(backend)
    }

    /// The first card's; the others have the same shares.
    pub fn load_times(&self) -> LoadTimes {
        self.cards[0].load_times()
    }

    /// As [`CudaBackend::unkept_kernels`].
    pub fn unkept_kernels(&self) -> Option<String> {
        self.cards[0].unkept_kernels()
    }

    /// What each card does side by side, as its kernels wait for the others': by the first, and by any
    /// other. By rank what came of it. Where one fails, the waits of all end, and nothing goes on.
    fn together<T: Send>(
        &mut self,
        first: impl FnOnce(&mut CudaBackend) -> Result<T>,
        other: impl Fn(&mut CudaBackend) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let aborts = &self.aborts;
        let held = |made: Result<T>| {
            if made.is_err() {
                aborts.iter().for_each(Abort::raise);
            }
            made
        };
        let (own, others) = split(&mut self.cards)?;
        let made: Vec<Result<T>> = std::thread::scope(|scope| {
            let work = |card| {
                let (held, other) = (&held, &other);
                scope.spawn(move || held(other(card)))
            };
            let threads: Vec<_> = others.iter_mut().map(work).collect();
            let own = held(first(own));
            let ended = || Err(Error::Internal("a card's thread ended early".into()));
            let others = threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(|_| ended()));
            std::iter::once(own).chain(others).collect()
        });
        self.kept(made.into_iter().collect())
    }

    /// What was made; behind an error nothing goes on, and no card waits for another.
    fn kept<T>(&mut self, made: Result<T>) -> Result<T> {
        if let Err(error) = &made {
            self.aborts.iter().for_each(Abort::raise);
            self.broken = Some(error.clone());
        }
        made
    }

    /// The same of each.
    fn each<T: Send>(
        &mut self,
        call: impl Fn(&mut CudaBackend) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        self.together(&call, &call)
    }

    /// What waits for no other card.
    fn in_turn(&mut self, call: impl FnMut(&mut CudaBackend) -> Result<()>) -> Result<()> {
        self.cards.iter_mut().try_for_each(call)
    }

    /// The first card's events; the others read as many steps.
    fn read_all(&mut self, wait: bool) -> Result<Vec<Event>> {
        // A card that failed stores nothing, and those that wait for it say nothing.
        while wait && !self.cards[0].has_events() && !self.cards[0].oldest_is_done()? {
            for other in &self.cards[1..] {
                other.oldest_is_done()?;
            }
            std::thread::yield_now();
        }
        let (first, others) = split(&mut self.cards)?;
        let queued = first.queued_steps();
        let events = first.drain(wait)?;
        let read = queued - first.queued_steps();
        others
            .iter_mut()
            .try_for_each(|card| card.read_steps(read))?;
        Ok(events)
    }

    /// No card goes on with sequences that one has ended.
    fn stop(&mut self, slot: usize) {
        self.cards.iter_mut().for_each(|card| card.stop(slot));
    }
}

/// The first, and the others.
fn split(cards: &mut [CudaBackend]) -> Result<(&mut CudaBackend, &mut [CudaBackend])> {
    let split = cards.split_first_mut();
    split.ok_or_else(|| Error::Internal("no card".into()))
}

impl Backend for CardsBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn map_pages(&mut self, kind: Kind, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        self.in_turn(|card| card.map_pages(kind, slot, first, pages))
    }

    fn copy_page(&mut self, kind: Kind, from: u32, to: u32) -> Result<()> {
        self.in_turn(|card| card.copy_page(kind, from, to))
    }

    fn storage(&mut self) -> Option<&mut dyn Storage> {
        Some(self)
    }

    fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()> {
        self.in_turn(|card| card.start(slot, request))
    }

    fn allow(&mut self, slot: usize, rows: Vec<Allowed>) -> Result<()> {
        self.in_turn(|card| card.allow(slot, rows.clone()))
    }

    fn feed(&mut self, parts: &[Part<'_>], step: bool) -> Result<Vec<(usize, Error)>> {
        let mut failed: Vec<(usize, Error)> = Vec::new();
        for (slot, error) in self
            .each(|card| card.feed(parts, step))?
            .into_iter()
            .flatten()
        {
            if failed.iter().all(|(known, _)| *known != slot) {
                failed.push((slot, error));
            }
        }
        failed.iter().for_each(|(slot, _)| self.stop(*slot));
        Ok(failed)
    }

    fn slice(&self, rest: usize, rows: Option<usize>, stepping: usize) -> usize {
        self.cards[0].slice(rest, rows, stepping)
    }

    fn steps_beside_prompts(&self, sequences: usize) -> bool {
        self.cards[0].steps_beside_prompts(sequences)
    }

    fn decode(&mut self) -> Result<()> {
        self.each(Backend::decode).map(drop)
    }

    fn awaits_draw(&self) -> bool {
        self.cards[0].awaits_draw()
    }

    fn draw(&mut self) -> Result<()> {
        self.each(Backend::draw).map(drop)
    }

    fn decode_drafted(&mut self, drafts: &[Draft]) -> Result<()> {
        self.each(|card| card.decode_drafted(drafts)).map(drop)
    }

    fn row_cost(&self) -> f32 {
        self.cards[0].row_cost()
    }

    fn is_settled(&self) -> bool {
        self.cards[0].is_settled()
    }

    fn drain(&mut self, wait: bool) -> Result<Vec<Event>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let events = self.read_all(wait);
        let events = self.kept(events)?;
        for event in &events {
            if let Some(Finish::Failed(_)) = event.finish {
                self.stop(event.slot);
            }
        }
        Ok(events)
    }

    fn may_queue(&self) -> bool {
        self.cards[0].may_queue()
    }

    fn set_paused(&mut self, slot: usize, paused: bool) {
        let cards = self.cards.iter_mut();
        cards.for_each(|card| card.set_paused(slot, paused));
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        self.in_turn(|card| card.release(slot))
    }

    fn saturated(&self, slot: usize) -> bool {
        self.cards.iter().any(|card| card.saturated(slot))
    }

    fn sampling_time(&self) -> Duration {
        Duration::ZERO
    }

    fn logits(
        &mut self,
        slot: usize,
        tokens: &[u32],
        start: usize,
        path: LogitsPath,
    ) -> Result<Vec<f32>> {
        let logits = self.each(|card| card.logits(slot, tokens, start, path))?;
        Ok(logits.into_iter().next().unwrap_or_default())
    }

    fn hidden(&mut self, parts: &[TextPart<'_>]) -> Result<Vec<Result<Vec<f32>>>> {
        let states = self.each(|card| card.hidden(parts))?;
        Ok(states.into_iter().next().unwrap_or_default())
    }
}

impl Drop for CardsBackend {
    /// Before the memory of any goes, no card stores into it.
    fn drop(&mut self) {
        for card in &mut self.cards {
            // What became of it, nobody wants to know any more.
            let _ = card.card().stream.synchronize();
        }
    }
}

/// A page or a state is what each card has of it, one behind another.
impl Storage for CardsBackend {
    fn layout(&self) -> &'static str {
        match (self.cards.len(), self.cards[0].layout()) {
            (2, "cuda") => "cuda, 2 cards",
            (3, "cuda") => "cuda, 3 cards",
            (_, "cuda") => "cuda, 4 cards",
            (2, _) => "cuda, 2 cards, long",
            (3, _) => "cuda, 3 cards, long",
            (_, _) => "cuda, 4 cards, long",
        }
    }

    fn page_bytes(&self, kind: Kind) -> usize {
        self.cards.iter().map(|card| card.page_bytes(kind)).sum()
    }

    fn state_bytes(&self) -> usize {
        self.cards.iter().map(Storage::state_bytes).sum()
    }

    fn read_page(&mut self, kind: Kind, page: u32, mut to: &mut [u8]) -> Result<()> {
        check_bytes("page", to.len(), self.page_bytes(kind))?;
        for card in &mut self.cards {
            let (own, rest) = to.split_at_mut(card.page_bytes(kind));
            card.read_page(kind, page, own)?;
            to = rest;
        }
        Ok(())
    }

    fn write_page(&mut self, kind: Kind, page: u32, mut from: &[u8]) -> Result<()> {
        check_bytes("page", from.len(), self.page_bytes(kind))?;
        for card in &mut self.cards {
            let (own, rest) = from.split_at(card.page_bytes(kind));
            card.write_page(kind, page, own)?;
            from = rest;
        }
        Ok(())
    }

    fn read_state(&mut self, slot: usize, mut to: &mut [u8]) -> Result<()> {
        check_bytes("state", to.len(), self.state_bytes())?;
        for card in &mut self.cards {
            let (own, rest) = to.split_at_mut(card.state_bytes());
            card.read_state(slot, own)?;
            to = rest;
        }
        Ok(())
    }

    fn write_state(&mut self, slot: usize, mut from: &[u8]) -> Result<()> {
        check_bytes("state", from.len(), self.state_bytes())?;
        for card in &mut self.cards {
            let (own, rest) = from.split_at(card.state_bytes());
            card.write_state(slot, own)?;
            from = rest;
        }
        Ok(())
    }

    fn host_memory(&self, memory: Prefaulted) -> Result<Box<dyn HostMemory>> {
        self.cards[0].host_memory(memory)
    }
}
