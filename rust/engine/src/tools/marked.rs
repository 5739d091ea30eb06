//! Text with calls and reasoning between markers.
use super::calls::{Body, Flow};
use super::event::Out;
use super::marker::{Finder, Seen};
use super::schema::Tools;
use super::{Machine, Thought};

/// How a format sets its calls apart.
#[derive(Debug)]
pub(super) struct Calls {
    /// Markers in front of a call.
    pub opens: &'static [&'static str],
    /// Markers behind one, at which a call that went wrong is over.
    pub closes: &'static [&'static str],
    /// An answer that begins with `{` may be a call too.
    pub bare: bool,
    /// Reads what follows the marker of a number; of the number behind the last, a bare call.
    pub body: fn(usize, &Tools) -> Box<dyn Body>,
}

pub(super) struct Marked {
    calls: Option<&'static Calls>,
    tools: Tools,
    /// The marker behind reasoning.
    close: Option<&'static str>,
    finder: Finder,
    state: State,
    /// White space, which belongs to a marker if one follows.
    spaces: String,
    /// A marker came last: white space belongs to it.
    layout: bool,
    /// Nothing but markers and white space was there, or since the last call.
    fresh: bool,
    free: String,
}

enum State {
    Text,
    Thought(Finder),
    /// Behind the marker of a call.
    Call(Box<dyn Body>, Read),
    /// Behind what went wrong in a call: why, and all of it.
    Broken(Finder, &'static str, String),
}

/// What was read since the marker of a call, which is included, or since the last that ended.
#[derive(Default)]
struct Read {
    text: String,
    /// Where the call that is whole has its end.
    whole: Option<usize>,
}

impl Read {
    /// Leaves out the call that was whole.
    fn ended(&mut self) {
        let end = self.whole.take().unwrap_or(0);
        self.text.drain(..end);
    }
}

impl Marked {
    pub fn new(
        calls: Option<&'static Calls>,
        thought: Option<Thought>,
        tools: Tools,
        opened: bool,
    ) -> Self {
        let mut words: Vec<&'static str> = calls.map_or_else(Vec::new, |c| c.opens.to_vec());
        let mut close = None;
        if let Some(Thought::Between(opens, closes)) = thought {
            words.push(opens);
            close = Some(closes);
        }
        let state = match close {
            Some(close) if opened => State::Thought(Finder::new(vec![close])),
            _ => State::Text,
        };
        Self {
            calls,
            tools,
            close,
            finder: Finder::new(words),
            layout: matches!(state, State::Thought(_)),
            state,
            spaces: String::new(),
            fresh: true,
            free: String::new(),
        }
    }

    fn opens(&self) -> &'static [&'static str] {
        self.calls.map_or(&[], |c| c.opens)
    }

    /// Text, or reasoning, that is in no marker.
    fn say(&mut self, text: &str, out: &mut Out, thought: bool) {
        let mut tell = |text: &str| match thought {
            true => out.reasoning(text),
            false => out.text(text),
        };
        for c in text.chars() {
            if c.is_whitespace() {
                self.spaces.push(c);
                continue;
            }
            let spaces = std::mem::take(&mut self.spaces);
            if !self.layout {
                tell(&spaces);
            }
            self.layout = false;
            self.fresh = false;
            tell(c.encode_utf8(&mut [0; 4]));
        }
    }

    /// A marker was there.
    fn mark(&mut self, state: State) {
        self.spaces.clear();
        self.layout = true;
        self.state = state;
    }

    fn begin(&mut self, number: usize) {
        if let Some(calls) = self.calls {
            let body = (calls.body)(number, &self.tools);
            let marker = self.opens().get(number).copied().unwrap_or("");
            let read = Read {
                text: marker.to_owned(),
                whole: None,
            };
            self.state = State::Call(body, read);
        }
    }

    fn text(&mut self, c: char, out: &mut Out) {
        let opens = self.opens();
        let bare = self.calls.is_some_and(|c| c.bare);
        if bare && self.fresh && !self.finder.holds() && c == '{' {
            self.begin(opens.len());
            return self.push(c, out);
        }
        let mut free = std::mem::take(&mut self.free);
        let seen = self.finder.push(c, &mut free);
        self.say(&free, out, false);
        free.clear();
        self.free = free;
        match (seen, self.close) {
            (Seen::Word(number), _) if number < opens.len() => self.begin(number),
            (Seen::Word(_), Some(close)) => self.mark(State::Thought(Finder::new(vec![close]))),
            _ => {}
        }
    }

    /// The end of what stood between markers, where the last call is whole.
    fn done(&mut self, left: &str, out: &mut Out) {
        out.end();
        self.fresh = true;
        self.mark(State::Text);
        for c in left.chars() {
            self.push(c, out);
        }
    }

    fn call(&mut self, mut body: Box<dyn Body>, mut read: Read, c: char, out: &mut Out) {
        let begun = out.begun();
        read.text.push(c);
        let flow = body.push(c, out);
        if out.begun() > begun {
            self.spaces.clear();
            self.layout = true;
            read.ended();
        }
        if let (Some(behind), None) = (out.behind(), read.whole) {
            read.whole = read.text.len().checked_sub(behind);
        }
        match flow {
            Flow::More => self.state = State::Call(body, read),
            Flow::Done => self.done(&body.left(), out),
            Flow::DoneBefore => {
                self.done("", out);
                self.push(c, out);
            }
            Flow::Broken(reason) => {
                read.text.pop();
                self.broken(reason, read.text, out);
                self.push(c, out);
            }
        }
    }

    fn broken(&mut self, reason: &'static str, read: String, out: &mut Out) {
        if out.is_open() {
            let closes = self.calls.map_or(&[][..], |c| c.closes);
            let words = [closes, self.opens()].concat();
            self.state = State::Broken(Finder::new(words), reason, read);
        } else {
            self.state = State::Text;
            self.say(&read, out, false);
        }
    }
}

impl Machine for Marked {
    fn push(&mut self, c: char, out: &mut Out) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(c, out),
            State::Thought(mut finder) => {
                let mut free = String::new();
                let seen = finder.push(c, &mut free);
                self.say(&free, out, true);
                match seen {
                    Seen::More => self.state = State::Thought(finder),
                    Seen::Word(_) => self.done("", out),
                }
            }
            State::Call(body, read) => self.call(body, read, c, out),
            State::Broken(mut finder, reason, mut read) => {
                let seen = finder.push(c, &mut read);
                let closes = self.calls.map_or(&[][..], |c| c.closes);
                match seen {
                    Seen::More => self.state = State::Broken(finder, reason, read),
                    Seen::Word(number) => {
                        let close = closes.get(number).copied();
                        read.push_str(close.unwrap_or(""));
                        out.fail(read, reason);
                        self.done("", out);
                        if close.is_none() {
                            self.begin(number.saturating_sub(closes.len()));
                        }
                    }
                }
            }
        }
    }

    fn finish(&mut self, out: &mut Out) {
        let mut thought = false;
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => {
                let held = self.finder.finish();
                self.say(&held, out, false);
            }
            State::Thought(mut finder) => {
                thought = true;
                self.say(&finder.finish(), out, true);
            }
            State::Call(mut body, mut read) => match body.finish(out) {
                Flow::Broken(reason) if out.is_open() && !out.is_whole() => {
                    out.fail(read.text, reason);
                }
                // A call that was cut before it began, behind one that is whole.
                Flow::Broken(_) => {
                    out.end();
                    read.ended();
                    self.say(&read.text, out, false);
                }
                Flow::More | Flow::Done | Flow::DoneBefore => {
                    self.done(&body.left(), out);
                    return self.finish(out);
                }
            },
            State::Broken(mut finder, reason, mut read) => {
                read.push_str(&finder.finish());
                out.fail(read, reason);
                self.layout = true;
            }
        }
        let spaces = std::mem::take(&mut self.spaces);
        match (self.layout, thought) {
            (true, _) => {}
            (false, true) => out.reasoning(&spaces),
            (false, false) => out.text(&spaces),
        }
    }
}
