//! Draws the comparison with fixed settings, for light and for dark pages.

use std::fmt::Write;

use super::loads::Row;

/// The colours of a page.
pub struct Colors {
    text: &'static str,
    faint: &'static str,
    grid: &'static str,
    /// No delay, best fixed setting, objective.
    bars: [&'static str; 3],
}

pub const THEMES: [(&str, Colors); 2] = [
    (
        "light",
        Colors {
            text: "#1f2328",
            faint: "#59636e",
            grid: "#d1d9e0",
            bars: ["#c8d1da", "#8c959f", "#0969da"],
        },
    ),
    (
        "dark",
        Colors {
            text: "#e6edf3",
            faint: "#9198a1",
            grid: "#3d444d",
            bars: ["#3d444d", "#656c76", "#4493f8"],
        },
    ),
];

const WIDTH: usize = 920;
const LEFT: f64 = 400.0;
const ROW: f64 = 34.0;
const TOP: f64 = 70.0;
/// The length of a bar for the score of the best fixed setting.
const WHOLE: f64 = 310.0;

/// Three bars for each load: the scores in relation to the best fixed setting.
pub fn bars(rows: &[&Row], colors: &Colors) -> String {
    let height = TOP + ROW * rows.len() as f64 + 20.0;
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' \
         font-family='system-ui, sans-serif' font-size='13' role='img'>\n<title>Throughput with a latency objective, beside \
         fixed settings</title>\n"
    );
    let names = ["no delay", "best fixed setting of the load", "latency objective"];
    for ((name, color), x) in names.iter().zip(colors.bars).zip([400, 500, 730]) {
        writeln!(svg, "<rect x='{x}' y='18' width='12' height='12' rx='2' fill='{color}'/>").unwrap();
        writeln!(svg, "<text x='{}' y='29' fill='{}'>{name}</text>", x + 20, colors.text).unwrap();
    }
    for part in [0, 50, 100, 150] {
        let x = LEFT + WHOLE * f64::from(part) / 100.0;
        let bottom = height - 20.0;
        writeln!(svg, "<path d='M{x:.0},{} V{bottom}' stroke='{}'/>", TOP - 8.0, colors.grid).unwrap();
        let faint = colors.faint;
        writeln!(
            svg,
            "<text x='{x:.0}' y='{}' text-anchor='middle' fill='{faint}'>{part} %</text>",
            TOP - 14.0
        )
        .unwrap();
    }
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let text = colors.text;
        writeln!(
            svg,
            "<text x='{}' y='{}' text-anchor='end' fill='{text}'>{}</text>",
            LEFT - 10.0,
            y + 18.0,
            row.name
        )
        .unwrap();
        for (bar, (score, color)) in
            [row.at_once.0, row.fixed.0, row.adaptive.0].iter().zip(colors.bars).enumerate()
        {
            let width = WHOLE * (score / row.fixed.0).min(1.6);
            let y = y + 2.0 + 9.0 * bar as f64;
            writeln!(svg, "<rect x='{LEFT}' y='{y}' width='{width:.0}' height='8' rx='2' fill='{color}'/>")
                .unwrap();
        }
    }
    svg + "</svg>\n"
}
