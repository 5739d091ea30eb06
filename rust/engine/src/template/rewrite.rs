//! Prepares a parsed template for rendering: whatever makes or compares values becomes a call of
//! ours, which charges the meter and has Python's meaning. Control flow stays minijinja's.
//!
//! The calls are filters whose names no template can spell.
use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt};
use minijinja::machinery::Span;
use minijinja::Value;

use super::value::{fail, Outcome};

/// Names of the calls, in the order of their use here.
pub(super) mod name {
    pub const ITER: &str = "#iter";
    pub const NEW_MACRO: &str = "#macro";
    pub const DROP: &str = "#drop";
    pub const ATTRIBUTE: &str = "#attribute";
    pub const ITEM: &str = "#item";
    pub const SLICE: &str = "#slice";
    pub const SAME: &str = "#same";
    pub const GIVEN: &str = "#given";
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

/// What is assigned to: names, lists of them, attributes of namespaces.
fn target<'a>(e: &Expr<'a>) -> Outcome<Expr<'a>> {
    Ok(match e {
        Expr::Var(v) => Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span())),
        Expr::List(l) => {
            let items: Outcome<Vec<_>> = l.items.iter().map(target).collect();
            Expr::List(Spanned::new(ast::List { items: items? }, l.span()))
        }
        Expr::GetAttr(g) => Expr::GetAttr(Spanned::new(
            ast::GetAttr {
                expr: target(&g.expr)?,
                name: g.name,
            },
            g.span(),
        )),
        other => return Err(refuse("assigning to an expression", other.span())),
    })
}

fn is_loop(e: &Expr<'_>) -> bool {
    matches!(e, Expr::Var(v) if v.id == "loop")
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

/// Rewrites the parsed `source`.
pub(super) struct Rewriter<'s> {
    pub source: &'s str,
}

impl Rewriter<'_> {
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
        let mut out = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            self.statement(stmt, &mut out)?;
        }
        Ok(out)
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
                    filter_expr: f.filter_expr.as_ref().map(|e| self.expr(e)).transpose()?,
                    recursive: f.recursive,
                    body: self.body(&f.body)?,
                    else_body: self.body(&f.else_body)?,
                },
                f.span(),
            )),
            Stmt::IfCond(i) => Stmt::IfCond(Spanned::new(
                ast::IfCond {
                    expr: self.expr(&i.expr)?,
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
            Stmt::Set(s) => Stmt::Set(Spanned::new(
                ast::Set {
                    target: target(&s.target)?,
                    expr: self.expr(&s.expr)?,
                },
                s.span(),
            )),
            Stmt::SetBlock(s) => Stmt::SetBlock(Spanned::new(
                ast::SetBlock {
                    target: target(&s.target)?,
                    filter: s.filter.as_ref().map(|e| self.expr(e)).transpose()?,
                    body: self.body(&s.body)?,
                },
                s.span(),
            )),
            Stmt::FilterBlock(f) => Stmt::FilterBlock(Spanned::new(
                ast::FilterBlock {
                    filter: self.expr(&f.filter)?,
                    body: self.body(&f.body)?,
                },
                f.span(),
            )),
            Stmt::Block(b) => Stmt::Block(Spanned::new(
                ast::Block {
                    name: b.name,
                    required: b.required,
                    body: self.body(&b.body)?,
                },
                b.span(),
            )),
            Stmt::Macro(m) => {
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
        let defaults: Outcome<Vec<_>> = m.defaults.iter().map(|e| self.expr(e)).collect();
        Ok(Spanned::new(
            ast::Macro {
                name: m.name,
                args: args?,
                defaults: defaults?,
                body: self.body(&m.body)?,
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
        if matches!(&callee, Expr::GetAttr(g) if g.name == "changed" && is_loop(&g.expr)) {
            // minijinja compares them: two strings are equal to it only where both are given.
            for arg in &mut args {
                if let CallArg::Pos(e) = arg {
                    let value = std::mem::replace(e, constant(Value::UNDEFINED, c.span()));
                    *e = call(name::GIVEN, c.span(), vec![value]);
                }
            }
        }
        Ok(ast::Call { expr: callee, args })
    }

    fn binary<'a>(&self, b: &Spanned<ast::BinOp<'a>>) -> Outcome<Expr<'a>> {
        let (left, right) = (self.expr(&b.left)?, self.expr(&b.right)?);
        let (name, op) = match b.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let op = b.op;
                // minijinja folds two constants into a bool; Python keeps the operand.
                let left = match left {
                    Expr::Const(_) => call(name::SAME, b.span(), vec![left]),
                    left => left,
                };
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
            Expr::Var(v) => Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span())),
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
                        expr: self.expr(&u.expr)?,
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
