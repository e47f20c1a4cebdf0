//! The result of a search, as a table for a terminal and as a page with pictures.

use std::fmt::Write as _;

use crate::search::{Measurement, Trial};
use crate::settings::{Engine, Settings};
use crate::{Outcome, Tune};

/// The lines of the table on a terminal.
const LINES: usize = 8;
/// Size of a picture, and the room for its axes.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 14.0;
/// The most characters of a reason on the page.
const LONGEST_REASON: usize = 300;

const COLUMNS: [&str; 5] = ["requests/s", "p50 ms", "p99 ms", "CPU ms", "memory MiB"];

fn cells(measured: &Measurement) -> [String; 5] {
    [
        number(measured.rate),
        number(measured.median),
        number(measured.p99),
        number(measured.cpu),
        number(measured.memory as f64 / f64::from(1 << 20)),
    ]
}

/// A number with three significant digits or more.
fn number(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The best settings and the present ones, line by line.
pub fn table(outcome: &Outcome) -> String {
    let is_shown = |(at, trial): &(usize, &Trial)| *at < LINES || trial.settings == Settings::PRESENT;
    let mut rows = vec![[&[""], &COLUMNS[..]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for (_, trial) in outcome.trials.iter().enumerate().filter(is_shown) {
        let mark = if trial.settings == outcome.advised { "* " } else { "  " };
        let name = format!("{mark}{}", trial.settings.describe());
        if let Ok(measured) = &trial.outcome {
            rows.push([name].into_iter().chain(cells(measured)).collect());
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..=COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// How much is gained by the advised settings, in words.
pub fn gain(outcome: &Outcome) -> String {
    let measured = |settings: Settings| {
        let trial = outcome.trials.iter().find(|trial| trial.settings == settings)?;
        trial.outcome.as_ref().ok()
    };
    if outcome.advised == Settings::PRESENT {
        return "No settings gain over the present configuration by more than chance.".into();
    }
    let name = outcome.advised.describe();
    match (measured(outcome.advised), measured(Settings::PRESENT)) {
        (Some(after), Some(before)) => format!(
            "Best: {name}. Beside the present configuration: {:.2} times the requests/s, {:.2} times the p99, {:.2} times the memory.",
            after.rate / before.rate,
            after.p99 / before.p99,
            after.memory as f64 / before.memory.max(1) as f64
        ),
        _ => format!("Best: {name}. The present configuration answers no request."),
    }
}

/// The number of untried candidates, in words.
pub fn untried(outcome: &Outcome) -> Option<String> {
    let enough = outcome.enough?.as_secs();
    let count = outcome.trials.iter().filter(|trial| trial.is_untried()).count();
    let all = outcome.trials.len();
    Some(format!(
        "Not tried for lack of time: {count} of {all} candidates. --seconds={enough} would be enough for all."
    ))
}

/// The page.
pub fn page(tune: &Tune, outcome: &Outcome) -> String {
    let name = escaped(&tune.model.name);
    let mut rows = String::new();
    for trial in &outcome.trials {
        let class = match &trial.outcome {
            Err(_) => " class=\"failed\"",
            Ok(_) if trial.settings == outcome.advised => " class=\"best\"",
            Ok(_) => "",
        };
        let _ = write!(rows, "<tr{class}><th scope=\"row\">{}</th>", escaped(&trial.settings.describe()));
        match &trial.outcome {
            Ok(measured) => cells(measured).iter().for_each(|cell| {
                let _ = write!(rows, "<td>{cell}</td>");
            }),
            Err(failure) => {
                let reason: String = failure.to_string().chars().take(LONGEST_REASON).collect();
                let _ = write!(rows, "<td colspan=\"5\">{}</td>", escaped(&reason));
            }
        }
        let _ = writeln!(rows, "<td>{}</td></tr>", trial.rounds);
    }
    let heads: String = COLUMNS.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>nereid tune {name}</title><style>{STYLE}</style></head>\
         <body><main><h1>{name}</h1><p>{}</p><p>{} clients at a time, within {} s. Inputs: {}.</p>{}\
         <h2>All candidates</h2>{}<p class=\"key\"><i class=\"a\"></i>configured engine <i class=\"b\"></i>OpenVINO \
         <i class=\"c\"></i>embedded engine; large: the best, ringed: the present configuration</p>\
         {}\
         <h2>Configuration</h2><pre>{}</pre>{}\
         <h2>Measurements</h2><table><thead><tr><th scope=\"col\">settings</th>{heads}<th scope=\"col\">rounds</th></tr></thead>\
         <tbody>{rows}</tbody></table></main></body></html>\n",
        escaped(&gain(outcome)),
        tune.clients,
        tune.budget.as_secs(),
        escaped(&outcome.inputs),
        untried(outcome).map(|text| format!("<p>{}</p>", escaped(&text))).unwrap_or_default(),
        scatter(outcome),
        curves(outcome),
        escaped(&outcome.config),
        match outcome.advised.needed_options() {
            [] => String::new(),
            options => format!("<p>and the server's option <code>{}</code></p>", escaped(&options.join(" "))),
        },
    )
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:0;color:#1b2a2f;background:#fff}main{max-width:860px;margin:auto;padding:24px}\
h1{font-size:26px}h2{font-size:18px;margin-top:32px}table{border-collapse:collapse;width:100%;font-size:13px}th,td{padding:4px 8px;text-align:right;\
border-bottom:1px solid #dde5e7}th:first-child{text-align:left;font-weight:normal}.best{background:#e2f3ee}.failed{color:#8a5a00}.failed td{text-align:left}\
pre{background:#f3f6f7;padding:12px;overflow:auto}svg{width:100%;height:auto}svg text{font-size:12px;fill:#50646b}.axis{stroke:#c3d0d4}.a{fill:#0d6f79;\
stroke:#0d6f79}.b{fill:#b4551d;stroke:#b4551d}.c{fill:#5a49a8;stroke:#5a49a8}circle{fill-opacity:.7}.present{fill:none;stroke:#1b2a2f;stroke-width:1.5}\
polyline{fill:none;stroke-width:2}.key i{display:inline-block;width:10px;height:10px;border-radius:5px;margin:0 4px 0 12px}i.a{background:#0d6f79}\
i.b{background:#b4551d}i.c{background:#5a49a8}\
@media(prefers-color-scheme:dark){body{background:#10191c;color:#dce7ea}pre{background:#1a262a}th,td{border-color:#2a3a40}.best{background:#153b33}\
svg text{fill:#9fb3ba}.axis{stroke:#35474d}.present{stroke:#fff}.a{fill:#35b3bf;stroke:#35b3bf}i.a{background:#35b3bf}.failed{color:#e0b15f}}";

fn class(engine: Engine) -> &'static str {
    match engine {
        Engine::Configured | Engine::OnnxRuntime => "a",
        Engine::OpenVino => "b",
        Engine::Embedded => "c",
    }
}

/// Maps values to places between two ends: evenly, or by their logarithms.
struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
}

impl Scale {
    /// From 0 to the largest value.
    fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        Self { low: 0.0, high: values.fold(f64::MIN_POSITIVE, f64::max) * 1.05, is_logarithmic: false }
    }

    /// From below the smallest value to above the largest.
    fn logarithmic(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
        let high = values.fold(f64::MIN_POSITIVE, f64::max);
        Self { low: low.min(high) / 1.3, high: high * 1.3, is_logarithmic: true }
    }

    /// The place of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match self.is_logarithmic {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => value / self.high,
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            let step = nice(self.high / 5.0);
            return (0..=6).map(|at| f64::from(at) * step).filter(|tick| *tick <= self.high).collect();
        }
        let powers = (-4..8).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
        powers.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

/// The next number of one digit, 1, 2 or 5, with zeroes.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(f64::MIN_POSITIVE).log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= value).unwrap_or(10.0);
    digit * power
}

fn at_x(place: f64) -> f64 {
    LEFT + place * (WIDTH - LEFT - 10.0)
}

fn at_y(place: f64) -> f64 {
    HEIGHT - BOTTOM - place * (HEIGHT - BOTTOM - TOP)
}

/// A picture with axes, and what is drawn on it.
fn picture(x: (&Scale, &str), y: (&Scale, &str), title: &str, drawn: &str) -> String {
    let mut axes = String::new();
    for tick in x.0.ticks() {
        let place = at_x(x.0.place(tick));
        let (base, text) = (at_y(0.0), at_y(0.0) + 16.0);
        let _ = write!(
            axes,
            "<path class=\"axis\" d=\"M{place:.1} {base:.1}V{TOP}\"/><text x=\"{place:.1}\" y=\"{text:.1}\" text-anchor=\"middle\">{}</text>",
            tick_text(tick)
        );
    }
    for tick in y.0.ticks() {
        let place = at_y(y.0.place(tick));
        let (text, label) = (place + 4.0, LEFT - 8.0);
        let _ = write!(
            axes,
            "<path class=\"axis\" d=\"M{LEFT} {place:.1}H{:.1}\"/><text x=\"{label:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>",
            at_x(1.0),
            tick_text(tick)
        );
    }
    let (middle, low, high) = (at_x(0.5), HEIGHT - 6.0, at_y(0.5));
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">{axes}{drawn}\
         <text x=\"{middle:.1}\" y=\"{low:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(14 {high:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text></svg>",
        x.1, y.1
    )
}

fn tick_text(tick: f64) -> String {
    if tick.fract().abs() < 1e-9 { format!("{tick:.0}") } else { format!("{}", (tick * 1e4).round() / 1e4) }
}

/// Requests a second and p99 of each candidate.
fn scatter(outcome: &Outcome) -> String {
    let measured: Vec<_> = outcome
        .trials
        .iter()
        .filter_map(|trial| Some((trial.settings, trial.outcome.as_ref().ok()?)))
        .collect();
    let x = Scale::from_zero(measured.iter().map(|(_, it)| it.rate));
    let y = Scale::logarithmic(measured.iter().map(|(_, it)| it.p99));
    let mut drawn = String::new();
    for (settings, it) in measured.iter().rev() {
        let (left, top) = (at_x(x.place(it.rate)), at_y(y.place(it.p99)));
        let radius = if *settings == outcome.advised { 8 } else { 4 };
        let _ = write!(
            drawn,
            "<circle class=\"{}\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"{radius}\"><title>{}: {} requests/s, p99 {} ms</title></circle>",
            class(settings.engine),
            escaped(&settings.describe()),
            number(it.rate),
            number(it.p99)
        );
        if *settings == Settings::PRESENT {
            let _ = write!(drawn, "<circle class=\"present\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"10\"/>");
        }
    }
    picture((&x, "requests/s"), (&y, "p99 in ms"), "Requests a second and p99 of each candidate", &drawn)
}

/// Requests a second by the number of clients, if there was time for it.
fn curves(outcome: &Outcome) -> String {
    let points = || outcome.curves.iter().flat_map(|(_, points)| points);
    if points().next().is_none() {
        return String::new();
    }
    let x = Scale::logarithmic(points().map(|(clients, _)| *clients as f64));
    let y = Scale::from_zero(points().map(|(_, it)| it.rate));
    let mut drawn = String::new();
    for (settings, points) in &outcome.curves {
        let place = |(clients, it): &(usize, Measurement)| {
            format!("{:.1},{:.1}", at_x(x.place(*clients as f64)), at_y(y.place(it.rate)))
        };
        let line: Vec<_> = points.iter().map(place).collect();
        let class = if *settings == outcome.advised { class(settings.engine) } else { "present" };
        let _ =
            write!(drawn, "<polyline class=\"{class}\" style=\"fill:none\" points=\"{}\"/>", line.join(" "));
        if let Some((clients, last)) = points.last() {
            let (left, top) = (at_x(x.place(*clients as f64)), at_y(y.place(last.rate)) - 6.0);
            let name = if *settings == outcome.advised { "best" } else { "present" };
            let _ = write!(drawn, "<text x=\"{left:.1}\" y=\"{top:.1}\" text-anchor=\"end\">{name}</text>");
        }
    }
    let picture =
        picture((&x, "clients"), (&y, "requests/s"), "Requests a second by the number of clients", &drawn);
    format!("<h2>More clients</h2>{picture}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
