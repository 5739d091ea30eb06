//! The passes of a backend: prompts and texts are fed in chunks, prompts beside a decode step where the
//! backend has such passes; and decode steps, with drafts that they verify.

use std::time::{Duration, Instant};

use super::active::behind;
use super::{Active, Executor, Task};
use crate::backend::{Draft, LogitsPath, Part, TextPart, ROUND_ROWS, STEPS_AHEAD};
use crate::engine::constrain::all_allowed;
use crate::engine::lookup::{Text, MOST_DRAFTED};
use crate::engine::pace::MIN_ROWS;
use crate::engine::policy::{self, SHARED_SLICE};
use crate::engine::scheduler::{Chunk, Fetch, Phase, Step};
use crate::error::{Error, Result};
use crate::sampler;

/// How long a pass waits for what is fetched of prompts behind its first one.
const FETCHING: Duration = Duration::from_millis(2);

/// Of a chunk whose logits are all kept: they take much memory.
const MAX_LOGIT_ROWS: usize = 512;
const FIRST_LOGIT_ROWS: usize = 32;

impl Executor {
    /// How long the pass may take that is made up, beside a step of `stepping` sequences.
    pub(super) fn time_left(&self, stepping: usize) -> Duration {
        let (whole, begun) = match stepping {
            0 => {
                let feeding = self.active.iter().flatten().filter(|a| a.feeds()).count();
                let step = self.decodes().then_some(self.paces.step_took);
                (policy::slice(step, feeding), self.round.feeding)
            }
            _ => (policy::beside(self.paces.step_took), self.round.pass),
        };
        whole.saturating_sub(begun.map_or(Duration::ZERO, |begun| begun.elapsed()))
    }

    /// Rows of a chunk of the text in `slot`, in a pass of `wanted` rows that is to be over in `left`.
    pub(super) fn chunk(
        &self,
        slot: usize,
        wanted: usize,
        stepping: usize,
        left: Duration,
    ) -> usize {
        let task = self.active[slot].as_ref().map(|active| &active.task);
        if let Some(Task::Logits { path, .. }) = task {
            let pace = match path {
                LogitsPath::Prefill => &self.paces.prefill,
                LogitsPath::Decode => &self.paces.step,
            };
            return pace
                .rows(left)
                .unwrap_or(FIRST_LOGIT_ROWS)
                .min(MAX_LOGIT_ROWS);
        }
        // Of an unknown pace as few as there are, where others wait.
        let rows = self.paces.prefill.rows(left);
        let rows = rows.or(self.decodes().then_some(MIN_ROWS + stepping));
        self.backend.slice(wanted, rows, stepping)
    }

    /// Rows of a step that verifies drafts of several sequences.
    pub(super) fn draft_rows(&self) -> usize {
        self.paces.prefill.rows(SHARED_SLICE).unwrap_or(MIN_ROWS)
    }

    /// Brings what is kept of a prompt to its pages, as far as there is time.
    pub(super) fn fetch(&mut self, fetch: Fetch) -> Result<()> {
        let begun = Instant::now();
        self.round.feeding.get_or_insert(begun);
        self.round.pass.get_or_insert(begun);
        let left = self.time_left(fetch.stepping);
        let until = begun
            + if fetch.first {
                left
            } else {
                left.min(FETCHING)
            };
        let done = self.publisher.done();
        let Some(active) = self.active[fetch.slot].as_mut() else {
            return Ok(());
        };
        active.begun.get_or_insert(begun);
        let (sequence, Task::Generate(g)) = (&mut active.sequence, &active.task) else {
            return Ok(());
        };
        let ready = sequence.fetch_prefix(&mut *self.backend, &g.request.prompt, until)?;
        if ready {
            let cached = sequence.cached() as u64;
            done.requests += 1;
            done.prefix_hits += u64::from(cached > 0);
            done.cached_tokens += cached;
            active.time_from(begun);
        } else if fetch.first {
            (self.round.fed, self.round.pass) = (true, None);
        } else {
            self.round.stalled = Some(fetch.slot);
        }
        Ok(())
    }

    /// Feeds chunks in a pass. Says whether it was a step too.
    pub(super) fn prefill(&mut self, step: Step) -> Result<bool> {
        let begun = Instant::now();
        self.round.feeding.get_or_insert(begun);
        (self.round.fed, self.round.pass, self.round.stalled) = (true, None, None);
        self.gate.interrupt();
        let first = step.prefill.first();
        let first = first.and_then(|chunk| self.active[chunk.slot].as_ref());
        let stepped = match first.map(Active::phase) {
            Some(Phase::Text) => {
                for chunk in step.prefill {
                    self.feed_text(chunk)?;
                }
                false
            }
            Some(Phase::Embed) => {
                self.feed_embedded(step.prefill)?;
                false
            }
            _ => self.feed_prompts(step.prefill, step.decode.len())?,
        };
        // A prompt that is done has drawn a token.
        self.deliver(false)?;
        Ok(stepped)
    }

    /// Feeds chunks of prompts, beside a step of `stepping` sequences. Says whether it was one.
    fn feed_prompts(&mut self, mut chunks: Vec<Chunk>, stepping: usize) -> Result<bool> {
        if stepping > 0 {
            self.advance_windows()?;
        }
        self.prepare_prompts(&chunks)?;
        chunks.retain(|chunk| self.active[chunk.slot].is_some());
        if chunks.is_empty() {
            return Ok(false);
        }
        if stepping > 0 {
            self.allow_next()?;
        }
        let begun = Instant::now();
        let parts = chunks.iter().filter_map(|chunk| {
            let active = self.active[chunk.slot].as_ref()?;
            let start = active.sequence.position;
            Some(Part {
                slot: chunk.slot,
                tokens: &active.prompt()[start..start + chunk.rows],
                start,
                last: chunk.last,
                next: active.prompt().get(start + chunk.rows).copied(),
            })
        });
        let parts: Vec<Part<'_>> = parts.collect();
        let fed = self.backend.feed(&parts, stepping > 0);
        let rows: usize = chunks.iter().map(|chunk| chunk.rows).sum();
        self.paces.prefill.note(rows + stepping, begun.elapsed());
        match fed {
            Ok(failed) => {
                for (slot, e) in failed {
                    self.fail(slot, e)?;
                }
            }
            Err(e) => {
                for chunk in &chunks {
                    self.fail(chunk.slot, e.clone())?;
                }
                if stepping > 0 {
                    self.fail_decoding(&e)?;
                }
            }
        }
        for chunk in chunks {
            self.go_on_behind(chunk)?;
        }
        Ok(stepping > 0)
    }

    /// Gives the backend what the next pass needs: pages of a window, and what the first token may be.
    /// Removes requests that fail here.
    fn prepare_prompts(&mut self, chunks: &[Chunk]) -> Result<()> {
        let now = Instant::now();
        for chunk in chunks {
            self.with_active(chunk.slot, |active, backend| {
                active.time_from(now);
                let start = active.sequence.position;
                active
                    .sequence
                    .advance_window(backend, start, start + chunk.rows)?;
                if let (Task::Generate(g), true) = (&mut active.task, chunk.last) {
                    if let Some(constrained) = g.constrained.as_mut() {
                        let set = constrained.allowed()?;
                        backend.allow(chunk.slot, vec![set])?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// What follows a chunk of a prompt that was fed: its pages serve others, and the last one is the end.
    fn go_on_behind(&mut self, chunk: Chunk) -> Result<()> {
        let Some(active) = self.active[chunk.slot].as_mut() else {
            return Ok(());
        };
        let Task::Generate(g) = &active.task else {
            return Ok(());
        };
        let sequence = &mut active.sequence;
        let keeps_state = chunk.rows == sequence.until_state(g.request.prompt.len());
        sequence.position += chunk.rows;
        let position = sequence.position;
        active.turn = Instant::now();
        self.publisher.done().prompt_tokens += chunk.rows as u64;
        let fed = &g.request.prompt[..position];
        if keeps_state {
            sequence.keep_state(&mut *self.backend, fed)?;
        }
        // What has been fed by now: others that begin alike wait for no more than they need.
        if let (true, Some(out)) = (chunk.last, &g.save) {
            drop(out.send(sequence.save(&mut *self.backend, fed)));
        }
        sequence.share(&mut *self.backend, fed)?;
        sequence.advance_window(&mut *self.backend, position, position)?;
        if chunk.last {
            sequence.end_prompt();
        }
        Ok(())
    }

    /// Feeds a chunk of a text for its logits.
    fn feed_text(&mut self, chunk: Chunk) -> Result<()> {
        let Chunk { slot, rows, .. } = chunk;
        let n_vocab = self.backend.limits().n_vocab;
        let Some(active) = self.active[slot].as_mut() else {
            return Ok(());
        };
        let begun = Instant::now();
        active.begun.get_or_insert(begun);
        let (sequence, backend) = (&mut active.sequence, &mut *self.backend);
        let (start, end) = (sequence.position, sequence.position + rows);
        let seen = sequence.advance_window(backend, start, end);
        let fed = match &mut active.task {
            Task::Generate(_) | Task::Embed(_) => {
                Err(Error::Internal(format!("what is in slot {slot} as a text")))
            }
            Task::Logits { ids, path, out } => {
                let logits =
                    seen.and_then(|()| backend.logits(slot, &ids[start..end], start, *path));
                let pace = match path {
                    LogitsPath::Prefill => &mut self.paces.prefill,
                    LogitsPath::Decode => &mut self.paces.step,
                };
                pace.note(rows, begun.elapsed());
                logits.and_then(|logits| {
                    sampler::check_rows(&logits, n_vocab)?;
                    drop(out.send(Ok(logits)));
                    Ok(())
                })
            }
        };
        match fed {
            Ok(()) => self.go_on_behind_text(chunk),
            Err(e) => self.fail(slot, e),
        }
    }

    /// Feeds chunks of texts that are embedded, in a pass.
    fn feed_embedded(&mut self, mut chunks: Vec<Chunk>) -> Result<()> {
        let begun = Instant::now();
        for chunk in &chunks {
            self.with_active(chunk.slot, |active, backend| {
                active.begun.get_or_insert(begun);
                let start = active.sequence.position;
                active
                    .sequence
                    .advance_window(backend, start, start + chunk.rows)
            })?;
        }
        chunks.retain(|chunk| self.active[chunk.slot].is_some());
        let parts = chunks.iter().filter_map(|chunk| {
            let active = self.active[chunk.slot].as_ref()?;
            let start = active.sequence.position;
            let Task::Embed(text) = &active.task else {
                return None;
            };
            Some(TextPart {
                slot: chunk.slot,
                tokens: &text.ids[start..start + chunk.rows],
                start,
                wanted: text.wanted(chunk.rows, chunk.last),
                second: text.second,
            })
        });
        let parts: Vec<TextPart<'_>> = parts.collect();
        let made = self.backend.hidden(&parts);
        let rows = chunks.iter().map(|chunk| chunk.rows).sum();
        self.paces.prefill.note(rows, begun.elapsed());
        let made = made.unwrap_or_else(|e| chunks.iter().map(|_| Err(e.clone())).collect());
        for (chunk, states) in chunks.into_iter().zip(made) {
            let active = self.active[chunk.slot].as_mut();
            let fed = match (active.map(|active| &mut active.task), states) {
                (Some(Task::Embed(text)), Ok(states)) => {
                    text.add(&states);
                    self.go_on_behind_text(chunk)
                }
                (_, Err(e)) => self.fail(chunk.slot, e),
                _ => Ok(()),
            };
            fed?;
        }
        Ok(())
    }

    /// What follows a chunk of a text that was fed.
    fn go_on_behind_text(&mut self, Chunk { slot, rows, last }: Chunk) -> Result<()> {
        let Some(active) = self.active[slot].as_mut() else {
            return Ok(());
        };
        let (sequence, backend) = (&mut active.sequence, &mut *self.backend);
        sequence.position += rows;
        let end = sequence.position;
        active.turn = Instant::now();
        self.publisher.done().prompt_tokens += rows as u64;
        sequence.advance_window(backend, end, end)?;
        if !last {
            return Ok(());
        }
        // Of logits the sender's end tells the receiver that these were all.
        if let Some(Active { sequence, task, .. }) = self.active[slot].take() {
            sequence.close(&mut *self.backend, &[])?;
            self.publish();
            if let Task::Embed(text) = task {
                text.finish();
            }
        }
        Ok(())
    }

    /// A decode step of every slot that decodes, with drafts of up to `draft_rows` tokens together; and what
    /// it gives, or the steps before.
    pub(super) fn decode(&mut self, draft_rows: usize) -> Result<()> {
        let begun = Instant::now();
        let settled = self.backend.is_settled();
        self.advance_windows()?;
        let mut drafts = self.drafts(settled, draft_rows)?;
        if drafts.is_empty() {
            while self.decodes() && self.backend.may_queue() {
                if let Err(e) = self.queue_step() {
                    return self.fail_decoding(&e);
                }
            }
        } else if settled {
            self.guesses = false;
            self.gate.interrupt();
            self.constrain_round(&mut drafts)?;
            self.leave_behind();
            if let Err(e) = self.backend.decode_drafted(&drafts) {
                return self.fail_decoding(&e);
            }
        }
        // Else somebody has a draft behind tokens that are still to come.
        self.deliver(true)?;
        self.constrain()?;
        self.paces.step_took = begun.elapsed();
        Ok(())
    }

    /// Queues a step, or a round that the model drafts for.
    fn queue_step(&mut self) -> Result<()> {
        let drafted = self.guessed_tokens()?;
        match drafted {
            _ if !self.decodes() => Ok(()),
            0 => {
                self.leave_behind();
                self.backend.decode()
            }
            n => {
                self.guesses = true;
                self.backend.decode_guessed(n)
            }
        }
    }

    /// How many tokens the model is to draft for every sequence that decodes: none where one of them is
    /// constrained, or its pages have no room for what may be wrong.
    fn guessed_tokens(&mut self) -> Result<usize> {
        if !self.gate.drafts() {
            return Ok(0);
        }
        let decoding = self.active.iter().flatten().filter(|a| a.decodes());
        let (mut longest, mut n) = (0, 0);
        for active in decoding {
            if let Task::Generate(g) = &active.task {
                if g.constrained.is_some() {
                    self.gate.interrupt();
                    return Ok(0);
                }
                longest = longest.max(g.request.prompt.len() + g.drawn.len());
                n += 1;
            }
        }
        let drafted = self.gate.choose(n, longest);
        let mut drafted = self.grow_for(drafted)?;
        if drafted > 0 && self.catch_up()? {
            // Steps that were queued have taken some of that room.
            drafted = self.grow_for(drafted)?;
        }
        self.gate.queue(n, longest, drafted, Instant::now());
        Ok(drafted)
    }

    /// Has pages for rounds of so many drafted tokens, or of none where there are not enough. Which it is.
    fn grow_for(&mut self, mut drafted: usize) -> Result<usize> {
        for active in self.active.iter_mut().flatten().filter(|a| a.decodes()) {
            if let Task::Generate(g) = &active.task {
                let tokens = g.request.prompt.len() + g.drawn.len();
                let left = g.request.max_tokens.saturating_sub(g.drawn.len());
                let wanted = tokens + (STEPS_AHEAD * (1 + drafted)).min(left);
                active.sequence.grow(&mut *self.backend, wanted)?;
                if active.sequence.capacity() < wanted {
                    drafted = 0;
                }
            }
        }
        Ok(drafted)
    }

    /// Notes that a step leaves what drafts behind, where it goes by tokens alone.
    fn leave_behind(&mut self) {
        if !self.backend.lags() {
            return;
        }
        for active in self.active.iter_mut().flatten().filter(|a| a.decodes()) {
            if let Task::Generate(g) = &mut active.task {
                // What was drawn last is not fed, and steps that were launched ahead are not known.
                let fed = (g.request.prompt.len() + g.drawn.len()).saturating_sub(1);
                g.followed.get_or_insert(fed);
            }
        }
    }

    /// Lets what drafts catch up with all that decode, once it is known what they have read. Says whether it
    /// was behind.
    fn catch_up(&mut self) -> Result<bool> {
        let is_behind = |a: &Active| match &a.task {
            Task::Generate(g) => a.decodes() && g.followed.is_some(),
            _ => false,
        };
        if !self.active.iter().flatten().any(is_behind) {
            return Ok(false);
        }
        while self.decodes() && !self.backend.is_settled() {
            self.deliver(true)?;
        }
        let mut left = Vec::new();
        for active in self.active.iter_mut().flatten().filter(|a| a.decodes()) {
            let slot = active.sequence.slot();
            left.extend(active.left_behind().map(|(tokens, at)| (slot, tokens, at)));
        }
        let parts = left
            .iter()
            .map(|(slot, tokens, at)| behind(*slot, tokens, *at));
        self.backend.follow(parts.collect())?;
        self.gate.interrupt();
        Ok(true)
    }

    /// Has the pages that layers with a window need for the steps that may be queued now.
    fn advance_windows(&mut self) -> Result<()> {
        for active in self.active.iter_mut().flatten().filter(|a| a.decodes()) {
            if let Task::Generate(g) = &active.task {
                // The token drawn last was not fed.
                let next = (g.request.prompt.len() + g.drawn.len()).saturating_sub(1);
                let sequence = &mut active.sequence;
                sequence.advance_window(&mut *self.backend, next, next + ROUND_ROWS)?;
            }
        }
        Ok(())
    }

    /// Has the step that stopped before its draw go on: what was drawn last is known by now.
    fn constrain(&mut self) -> Result<()> {
        if !self.backend.awaits_draw() {
            return Ok(());
        }
        self.allow_next()?;
        match self.backend.draw() {
            Ok(()) => Ok(()),
            Err(e) => self.fail_decoding(&e),
        }
    }

    /// Says what every constrained sequence that decodes may draw next.
    fn allow_next(&mut self) -> Result<()> {
        let begun = Instant::now();
        let active = self.active.iter_mut().enumerate();
        let due = active.filter_map(|(slot, a)| Some((slot, a.as_mut()?.constrained()?)));
        for (slot, allowed) in all_allowed(due.collect()) {
            let said = allowed.and_then(|set| self.backend.allow(slot, vec![set]));
            said.or_else(|e| self.fail(slot, e))?;
        }
        self.text_time += begun.elapsed();
        Ok(())
    }

    /// Says what each row of a step that verifies drafts may draw, where a sequence is constrained.
    fn constrain_round(&mut self, drafts: &mut Vec<Draft>) -> Result<()> {
        for slot in 0..self.active.len() {
            let active = self.active[slot].as_mut();
            let Some(constrained) = active.and_then(Active::constrained) else {
                continue;
            };
            let mut none = Vec::new();
            let draft = drafts.iter_mut().find(|draft| draft.slot == slot);
            let tokens = draft.map_or(&mut none, |draft| &mut draft.tokens);
            let sets = constrained.allowed_along(tokens);
            let said = sets.and_then(|sets| self.backend.allow(slot, sets));
            said.or_else(|e| self.fail(slot, e))?;
        }
        drafts.retain(|draft| self.active[draft.slot].is_some());
        Ok(())
    }

    /// What the texts of sequences let expect of their next tokens, up to `room` of them; the step that is
    /// to verify it is begun at once where all is `settled`.
    fn drafts(&mut self, settled: bool, mut room: usize) -> Result<Vec<Draft>> {
        let all = self.active.iter().flatten();
        let mut askers = all.filter(|a| a.decodes() && a.drafts()).count();
        let mut drafts = Vec::new();
        if askers == 0 {
            return Ok(drafts);
        }
        let n_ctx = self.backend.limits().n_ctx;
        for (slot, active) in self.active.iter_mut().enumerate() {
            let Some(active) = active.as_mut().filter(|a| a.decodes() && a.drafts()) else {
                continue;
            };
            let Task::Generate(g) = &mut active.task else {
                continue;
            };
            let text = Text {
                prompt: &g.request.prompt,
                drawn: &g.drawn,
            };
            // The last row gives the last token that there is room for.
            let left = g.request.max_tokens.saturating_sub(g.drawn.len() + 1);
            let most = left.min(n_ctx.saturating_sub(text.len() + 1));
            // Nobody is preempted for what may be wrong.
            let wanted = text.len() + most.min(MOST_DRAFTED);
            active.sequence.grow(&mut *self.backend, wanted)?;
            let most = most.min(active.sequence.capacity().saturating_sub(text.len()));
            let most = most.min(room / askers);
            let forced = g.constrained.as_mut().map(|c| c.forced(most, settled));
            let mut tokens = forced.unwrap_or_default();
            // What is sure needs no guess.
            let guessed = if tokens.is_empty() { most } else { 0 };
            let guess = g
                .lookup
                .as_mut()
                .map(|lookup| lookup.draft(&text, guessed, settled));
            let guess = guess.unwrap_or_default();
            let is_guess = !guess.is_empty();
            tokens.extend(guess);
            askers -= 1;
            room -= tokens.len();
            if tokens.is_empty() {
                continue;
            }
            if settled && is_guess {
                g.drafted += tokens.len();
                g.rounds += 1;
                self.publisher.done().drafted_tokens += tokens.len() as u64;
                self.publisher.done().draft_rounds += 1;
            }
            drafts.push(Draft { slot, tokens });
        }
        Ok(drafts)
    }
}
