//! Prepares a parsed template for rendering: whatever makes or compares values becomes a call of
//! ours, which charges the meter and has Python's meaning. Control flow stays minijinja's.
//!
//! The calls are filters whose names no template can spell. What minijinja does on its own between
//! two of them is bounded by its fuel: one of them stands wherever a template may come by again.
use std::cell::Cell;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt};
use minijinja::machinery::Span;
use minijinja::Value;

use super::meter::{fail, Outcome};

/// Names of the calls, in the order of their use here.
pub(super) mod name {
    pub const ITER: &str = "#iter";
    pub const NEW_MACRO: &str = "#macro";
    pub const DROP: &str = "#drop";
    pub const WEIGHED: &str = "#weighed";
    pub const PASSED: &str = "#passed";
    pub const RECEIVED: &str = "#received";
    pub const CANONICAL: &str = "#canonical";
    pub const SET: &str = "#set";
    pub const ATTRIBUTE: &str = "#attribute";
    pub const ITEM: &str = "#item";
    pub const SLICE: &str = "#slice";
    pub const SAME: &str = "#same";
    pub const LIST: &str = "#list";
    pub const TUPLE: &str = "#tuple";
    pub const MAP: &str = "#map";
    pub const NEGATE: &str = "#negate";
    pub const CONCAT: &str = "#concat";
    pub const ARITHMETIC: &str = "#arithmetic";
    pub const COMPARE: &str = "#compare";
}

fn refuse(what: &str, span: Span) -> minijinja::Error {
    fail(format!(
        "line {}: {what} is not available to a chat template",
        span.start_line
    ))
}

/// `first|name(rest...)`.
fn call<'a>(name: &'static str, span: Span, args: Vec<Expr<'a>>) -> Expr<'a> {
    let mut args = args.into_iter();
    Expr::Filter(Spanned::new(
        ast::Filter {
            name,
            expr: args.next(),
            args: args.map(CallArg::Pos).collect(),
        },
        span,
    ))
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

fn emit<'a>(expr: Expr<'a>, span: Span) -> Stmt<'a> {
    Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
}

/// Charged where a macro is made: each holds what it encloses, in a chain perhaps.
fn new_macro<'a>(span: Span) -> Expr<'a> {
    call(name::NEW_MACRO, span, vec![constant(Value::from(""), span)])
}

/// Holds the text of a block until an attribute is set to it.
const BLOCK: &str = "#block";

/// Scopes around what stands in no other statement: the template's own, and one for its body.
const TOP: u64 = 2;

/// Functions that are no macros.
const FUNCTIONS: &[&str] = &[
    "dict",
    "loop",
    "namespace",
    "raise_exception",
    "range",
    "strftime_now",
];

/// Work of the compiler on names in macros: each macro is gone through once for every macro around it, each
/// name of it once for every scope around it. Published templates need some 10,000.
const MAX_CLOSURE_WORK: u64 = 20_000_000;

/// The same value by way of a call of ours, so that deadline and caller are asked.
fn asking(e: Expr<'_>) -> Expr<'_> {
    match e {
        e @ (Expr::Filter(_) | Expr::Test(_)) => e,
        e => {
            let span = e.span();
            call(name::SAME, span, vec![e])
        }
    }
}

/// `not not not a` is `not a`: minijinja goes through the whole chain at each of its links.
fn not_thrice<'e, 'a>(mut e: &'e Expr<'a>) -> &'e Expr<'a> {
    while let Some(inner) = operand_of_not(e).and_then(operand_of_not) {
        e = inner;
    }
    e
}

fn operand_of_not<'e, 'a>(e: &'e Expr<'a>) -> Option<&'e Expr<'a>> {
    match e {
        Expr::UnaryOp(u) if matches!(u.op, ast::UnaryOpKind::Not) => Some(&u.expr),
        _ => None,
    }
}

/// `loop.changed(...)` compares inside minijinja: what it compares is one string of ours.
fn canonical<'a>(g: &ast::GetAttr<'a>, args: Vec<CallArg<'a>>, span: Span) -> Outcome<Expr<'a>> {
    if !matches!(&g.expr, Expr::Var(v) if v.id == "loop") {
        return Err(refuse("changed() of anything but loop", span));
    }
    let mut values = Vec::with_capacity(args.len().saturating_add(1));
    for arg in args {
        match arg {
            CallArg::Pos(value) => values.push(value),
            _ => return Err(refuse("changed() of a named value", span)),
        }
    }
    if values.is_empty() {
        return Err(refuse("changed() of nothing", span));
    }
    Ok(call(name::CANONICAL, span, values))
}

/// What is assigned to: names and lists of them.
fn target<'a>(e: &Expr<'a>) -> Outcome<Expr<'a>> {
    Ok(match e {
        Expr::Var(v) if v.id == "loop" => return Err(refuse("a variable named loop", v.span())),
        Expr::Var(v) => Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span())),
        Expr::List(l) => {
            let items: Outcome<Vec<_>> = l.items.iter().map(target).collect();
            Expr::List(Spanned::new(ast::List { items: items? }, l.span()))
        }
        other => return Err(refuse("assigning to an expression", other.span())),
    })
}

fn operator(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "notin",
    }
}

/// `{% set namespace.name = value %}`; nothing where the target is another one.
fn set_attribute<'a>(target: &Expr<'a>, value: Expr<'a>) -> Option<Stmt<'a>> {
    let Expr::GetAttr(g) = target else {
        return None;
    };
    let Expr::Var(v) = &g.expr else {
        return None;
    };
    let namespace = Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span()));
    let name = constant(Value::from(g.name), g.span());
    let set = call(name::SET, g.span(), vec![namespace, name, value]);
    Some(emit(set, g.span()))
}

/// Rewrites the parsed `source`.
pub(super) struct Rewriter<'s> {
    source: &'s str,
    /// Macros and scopes around the place, and the compiler's work so far.
    macros: Cell<u64>,
    scopes: Cell<u64>,
    work: Cell<u64>,
}

impl<'s> Rewriter<'s> {
    pub fn new(source: &'s str) -> Self {
        Rewriter {
            source,
            macros: Cell::new(0),
            scopes: Cell::new(1),
            work: Cell::new(0),
        }
    }

    /// The statements of a whole template.
    pub fn template<'a>(&self, stmt: &Stmt<'a>) -> Outcome<Stmt<'a>> {
        match stmt {
            Stmt::Template(t) => Ok(Stmt::Template(Spanned::new(
                ast::Template {
                    children: self.body(&t.children)?,
                },
                t.span(),
            ))),
            _ => Err(fail("no template")),
        }
    }

    fn body<'a>(&self, stmts: &[Stmt<'a>]) -> Outcome<Vec<Stmt<'a>>> {
        self.scopes.set(self.scopes.get().saturating_add(1));
        let mut out = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            self.statement(stmt, &mut out)?;
        }
        self.scopes.set(self.scopes.get().saturating_sub(1));
        Ok(out)
    }

    /// What is set inside stays inside.
    fn scope<'a>(&self, stmts: &[Stmt<'a>], span: Span) -> Outcome<Stmt<'a>> {
        Ok(Stmt::WithBlock(Spanned::new(
            ast::WithBlock {
                assignments: Vec::new(),
                body: self.body(stmts)?,
            },
            span,
        )))
    }

    /// What is run more than once: it starts with a call of ours.
    fn repeated<'a>(&self, stmts: &[Stmt<'a>], span: Span) -> Outcome<Vec<Stmt<'a>>> {
        let mut out = vec![emit(constant(Value::from(""), span), span)];
        out.extend(self.body(stmts)?);
        Ok(out)
    }

    /// A name that the compiler looks for in all that is around it.
    fn named(&self, span: Span) -> Outcome<()> {
        let step = self.macros.get().saturating_mul(self.scopes.get());
        let work = self.work.get().saturating_add(step);
        self.work.set(work);
        if work > MAX_CLOSURE_WORK {
            return Err(refuse("so much inside of nested macros", span));
        }
        Ok(())
    }

    fn statement<'a>(&self, stmt: &Stmt<'a>, out: &mut Vec<Stmt<'a>>) -> Outcome<()> {
        let rewritten = match stmt {
            // Raw text goes through the formatter like any value, where it is charged.
            Stmt::EmitRaw(raw) => emit(constant(Value::from(raw.raw), raw.span()), raw.span()),
            Stmt::EmitExpr(e) => emit(self.expr(&e.expr)?, e.span()),
            Stmt::ForLoop(f) => Stmt::ForLoop(Spanned::new(
                ast::ForLoop {
                    target: target(&f.target)?,
                    iter: call(name::ITER, f.iter.span(), vec![self.expr(&f.iter)?]),
                    filter_expr: f
                        .filter_expr
                        .as_ref()
                        .map(|e| self.expr(e).map(asking))
                        .transpose()?,
                    recursive: f.recursive,
                    body: self.repeated(&f.body, f.span())?,
                    else_body: self.body(&f.else_body)?,
                },
                f.span(),
            )),
            Stmt::IfCond(i) => Stmt::IfCond(Spanned::new(
                ast::IfCond {
                    expr: asking(self.expr(&i.expr)?),
                    true_body: self.body(&i.true_body)?,
                    false_body: self.body(&i.false_body)?,
                },
                i.span(),
            )),
            Stmt::WithBlock(w) => {
                let assignments: Outcome<Vec<_>> = w
                    .assignments
                    .iter()
                    .map(|(t, e)| Ok((target(t)?, self.expr(e)?)))
                    .collect();
                Stmt::WithBlock(Spanned::new(
                    ast::WithBlock {
                        assignments: assignments?,
                        body: self.body(&w.body)?,
                    },
                    w.span(),
                ))
            }
            Stmt::Set(s) => {
                let value = self.expr(&s.expr)?;
                if matches!(s.target, Expr::GetAttr(_)) {
                    set_attribute(&s.target, value)
                        .ok_or_else(|| refuse("assigning to an expression", s.span()))?
                } else {
                    Stmt::Set(Spanned::new(
                        ast::Set {
                            target: target(&s.target)?,
                            expr: value,
                        },
                        s.span(),
                    ))
                }
            }
            Stmt::SetBlock(s) => {
                let variable = |id| Expr::Var(Spanned::new(ast::Var { id }, s.span()));
                let set = set_attribute(&s.target, variable(BLOCK));
                out.push(Stmt::SetBlock(Spanned::new(
                    ast::SetBlock {
                        target: match set {
                            Some(_) => variable(BLOCK),
                            None => target(&s.target)?,
                        },
                        filter: s.filter.as_ref().map(|e| self.expr(e)).transpose()?,
                        body: vec![self.scope(&s.body, s.span())?],
                    },
                    s.span(),
                )));
                out.extend(set);
                return Ok(());
            }
            Stmt::FilterBlock(f) => Stmt::FilterBlock(Spanned::new(
                ast::FilterBlock {
                    filter: self.expr(&f.filter)?,
                    body: vec![self.scope(&f.body, f.span())?],
                },
                f.span(),
            )),
            Stmt::Block(b) if self.scopes.get() > TOP => {
                return Err(refuse("a block inside of other statements", b.span()))
            }
            Stmt::Block(b) => Stmt::Block(Spanned::new(
                ast::Block {
                    name: b.name,
                    required: b.required,
                    body: self.repeated(&b.body, b.span())?,
                },
                b.span(),
            )),
            Stmt::Macro(m) => {
                if m.name == "loop" {
                    return Err(refuse("a macro named loop", m.span()));
                }
                out.push(emit(new_macro(m.span()), m.span()));
                Stmt::Macro(self.macro_decl(m)?)
            }
            Stmt::CallBlock(c) => {
                out.push(emit(new_macro(c.span()), c.span()));
                Stmt::CallBlock(Spanned::new(
                    ast::CallBlock {
                        call: Spanned::new(self.call_parts(&c.call)?, c.call.span()),
                        macro_decl: self.macro_decl(&c.macro_decl)?,
                    },
                    c.span(),
                ))
            }
            Stmt::Continue(c) => Stmt::Continue(Spanned::new(ast::Continue, c.span())),
            Stmt::Break(b) => Stmt::Break(Spanned::new(ast::Break, b.span())),
            Stmt::Do(d) => {
                let made = Expr::Call(Spanned::new(self.call_parts(&d.call)?, d.call.span()));
                emit(call(name::DROP, d.span(), vec![made]), d.span())
            }
            Stmt::AutoEscape(s) => return Err(refuse("autoescape", s.span())),
            Stmt::Import(s) => return Err(refuse("import", s.span())),
            Stmt::FromImport(s) => return Err(refuse("import", s.span())),
            Stmt::Extends(s) => return Err(refuse("extends", s.span())),
            Stmt::Include(s) => return Err(refuse("include", s.span())),
            Stmt::Template(t) => return Err(refuse("a nested template", t.span())),
        };
        out.push(rewritten);
        Ok(())
    }

    fn macro_decl<'a>(&self, m: &Spanned<ast::Macro<'a>>) -> Outcome<Spanned<ast::Macro<'a>>> {
        let args: Outcome<Vec<_>> = m.args.iter().map(target).collect();
        self.macros.set(self.macros.get().saturating_add(1));
        let mut body = Vec::new();
        // One after the other: a default may be an argument in front of it.
        let without = m.args.len().saturating_sub(m.defaults.len());
        let defaults = std::iter::repeat_n(None, without).chain(m.defaults.iter().map(Some));
        for (arg, default) in m.args.iter().zip(defaults) {
            let received = call(name::RECEIVED, arg.span(), vec![target(arg)?]);
            let value = match default {
                None => received,
                Some(default) => Expr::IfExpr(Spanned::new(
                    ast::IfExpr {
                        test_expr: Expr::Test(Spanned::new(
                            ast::Test {
                                name: "undefined",
                                expr: target(arg)?,
                                args: Vec::new(),
                            },
                            arg.span(),
                        )),
                        true_expr: self.expr(default)?,
                        false_expr: Some(received),
                    },
                    arg.span(),
                )),
            };
            body.push(Stmt::Set(Spanned::new(
                ast::Set {
                    target: target(arg)?,
                    expr: value,
                },
                arg.span(),
            )));
        }
        body.extend(self.repeated(&m.body, m.span())?);
        self.macros.set(self.macros.get().saturating_sub(1));
        Ok(Spanned::new(
            ast::Macro {
                name: m.name,
                args: args?,
                defaults: Vec::new(),
                body,
            },
            m.span(),
        ))
    }

    fn arguments<'a>(&self, args: &[CallArg<'a>], span: Span) -> Outcome<Vec<CallArg<'a>>> {
        args.iter()
            .map(|arg| {
                Ok(match arg {
                    CallArg::Pos(e) => CallArg::Pos(self.expr(e)?),
                    CallArg::Kwarg(name, e) => CallArg::Kwarg(name, self.expr(e)?),
                    CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                        return Err(refuse("unpacking arguments with * or **", span))
                    }
                })
            })
            .collect()
    }

    fn call_parts<'a>(&self, c: &Spanned<ast::Call<'a>>) -> Outcome<ast::Call<'a>> {
        // minijinja tells functions and methods apart by what stands in front: that stays as it is.
        let callee = match &c.expr {
            Expr::Var(v) => Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span())),
            Expr::GetAttr(g) => Expr::GetAttr(Spanned::new(
                ast::GetAttr {
                    expr: match &g.expr {
                        Expr::Var(v) => Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span())),
                        other => self.expr(other)?,
                    },
                    name: g.name,
                },
                g.span(),
            )),
            other => self.expr(other)?,
        };
        let mut args = self.arguments(&c.args, c.span())?;
        if matches!(&c.expr, Expr::Var(v) if !FUNCTIONS.contains(&v.id)) {
            for arg in &mut args {
                let (CallArg::Pos(e) | CallArg::Kwarg(_, e)) = arg else {
                    continue;
                };
                let given = std::mem::replace(e, constant(Value::UNDEFINED, c.span()));
                *e = call(name::PASSED, c.span(), vec![given]);
            }
        }
        match (&c.expr, args.as_mut_slice()) {
            // It may be a recursive loop by any name, which counts what it is given.
            (Expr::Var(_), [CallArg::Pos(arg)]) => {
                let given = std::mem::replace(arg, constant(Value::UNDEFINED, c.span()));
                *arg = call(name::WEIGHED, c.span(), vec![given]);
            }
            (Expr::GetAttr(g), _) if g.name == "changed" => {
                args = vec![CallArg::Pos(canonical(g, args, c.span())?)];
            }
            (Expr::GetAttr(g), []) if g.name == "cycle" => {
                return Err(refuse("cycle() of nothing", c.span()))
            }
            _ => {}
        }
        Ok(ast::Call { expr: callee, args })
    }

    fn binary<'a>(&self, b: &Spanned<ast::BinOp<'a>>) -> Outcome<Expr<'a>> {
        let (left, right) = (self.expr(&b.left)?, self.expr(&b.right)?);
        let (name, op) = match b.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let op = b.op;
                // minijinja folds two constants into a bool, where Python keeps the operand, and
                // looks for them through all of a chain at each of its links.
                let left = asking(left);
                return Ok(Expr::BinOp(Spanned::new(
                    ast::BinOp { op, left, right },
                    b.span(),
                )));
            }
            BinOpKind::Concat => return Ok(call(name::CONCAT, b.span(), vec![left, right])),
            BinOpKind::Add => (name::ARITHMETIC, "+"),
            BinOpKind::Sub => (name::ARITHMETIC, "-"),
            BinOpKind::Mul => (name::ARITHMETIC, "*"),
            BinOpKind::Div => (name::ARITHMETIC, "/"),
            BinOpKind::FloorDiv => (name::ARITHMETIC, "//"),
            BinOpKind::Rem => (name::ARITHMETIC, "%"),
            BinOpKind::Pow => (name::ARITHMETIC, "**"),
            BinOpKind::Eq => (name::COMPARE, "=="),
            BinOpKind::Ne => (name::COMPARE, "!="),
            BinOpKind::Lt => (name::COMPARE, "<"),
            BinOpKind::Lte => (name::COMPARE, "<="),
            BinOpKind::Gt => (name::COMPARE, ">"),
            BinOpKind::Gte => (name::COMPARE, ">="),
            BinOpKind::In => (name::COMPARE, "in"),
        };
        let op = constant(Value::from(op), b.span());
        Ok(call(name, b.span(), vec![left, op, right]))
    }

    fn expr<'a>(&self, e: &Expr<'a>) -> Outcome<Expr<'a>> {
        Ok(match e {
            Expr::Var(v) => {
                self.named(v.span())?;
                // jinja2 gathers there what a macro has no name for.
                if self.macros.get() > 0 && matches!(v.id, "varargs" | "kwargs") {
                    return Err(refuse(&format!("{} of a macro", v.id), v.span()));
                }
                Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span()))
            }
            Expr::Const(c) => constant(c.value.clone(), c.span()),
            Expr::Slice(s) => {
                let none = || constant(Value::from(()), s.span());
                let part =
                    |p: &Option<Expr<'a>>| p.as_ref().map_or_else(|| Ok(none()), |e| self.expr(e));
                let parts = vec![
                    self.expr(&s.expr)?,
                    part(&s.start)?,
                    part(&s.stop)?,
                    part(&s.step)?,
                ];
                call(name::SLICE, s.span(), parts)
            }
            Expr::UnaryOp(u) => match u.op {
                ast::UnaryOpKind::Not => Expr::UnaryOp(Spanned::new(
                    ast::UnaryOp {
                        op: ast::UnaryOpKind::Not,
                        expr: asking(self.expr(not_thrice(&u.expr))?),
                    },
                    u.span(),
                )),
                ast::UnaryOpKind::Neg => call(name::NEGATE, u.span(), vec![self.expr(&u.expr)?]),
            },
            Expr::BinOp(b) => self.binary(b)?,
            Expr::Compare(c) => {
                let mut parts = vec![self.expr(&c.expr)?];
                for op in &c.ops {
                    parts.push(constant(Value::from(operator(op.op)), c.span()));
                    parts.push(self.expr(&op.expr)?);
                }
                call(name::COMPARE, c.span(), parts)
            }
            Expr::IfExpr(i) => Expr::IfExpr(Spanned::new(
                ast::IfExpr {
                    test_expr: self.expr(&i.test_expr)?,
                    true_expr: self.expr(&i.true_expr)?,
                    false_expr: i.false_expr.as_ref().map(|e| self.expr(e)).transpose()?,
                },
                i.span(),
            )),
            Expr::Filter(f) => Expr::Filter(Spanned::new(
                ast::Filter {
                    name: f.name,
                    expr: f.expr.as_ref().map(|e| self.expr(e)).transpose()?,
                    args: self.arguments(&f.args, f.span())?,
                },
                f.span(),
            )),
            Expr::Test(t) => Expr::Test(Spanned::new(
                ast::Test {
                    name: t.name,
                    expr: self.expr(&t.expr)?,
                    args: self.arguments(&t.args, t.span())?,
                },
                t.span(),
            )),
            Expr::GetAttr(g) => {
                let name = constant(Value::from(g.name), g.span());
                call(name::ATTRIBUTE, g.span(), vec![self.expr(&g.expr)?, name])
            }
            Expr::GetItem(g) => call(
                name::ITEM,
                g.span(),
                vec![self.expr(&g.expr)?, self.expr(&g.subscript_expr)?],
            ),
            Expr::Call(c) => Expr::Call(Spanned::new(self.call_parts(c)?, c.span())),
            Expr::List(l) => {
                // A filter has a first argument always; the empty text stands there.
                let mut parts = vec![constant(Value::from(""), l.span())];
                for item in &l.items {
                    parts.push(self.expr(item)?);
                }
                // The parser tells tuples from lists no more, the text does.
                let start = l.span().start_offset as usize;
                let is_list = self.source.get(start..).is_some_and(|s| s.starts_with('['));
                let name = if is_list { name::LIST } else { name::TUPLE };
                call(name, l.span(), parts)
            }
            Expr::Map(m) => {
                let mut parts = vec![constant(Value::from(""), m.span())];
                for (key, value) in m.keys.iter().zip(&m.values) {
                    parts.push(self.expr(key)?);
                    parts.push(self.expr(value)?);
                }
                call(name::MAP, m.span(), parts)
            }
        })
    }
}
