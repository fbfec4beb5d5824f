//! Plots as SVG, and an HTML page of plots without external parts. Colours follow the light or dark mode of the
//! browser; plots follow the width of the page.

use std::fmt::Write;

/// A curve.
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Number of the colour. Each compared variant has one colour in all plots.
    pub color: usize,
    /// Points (x, y) with positive coordinates.
    pub points: Vec<[f64; 2]>,
}

/// A stacked bar.
pub struct Bar {
    /// Label beside the bar.
    pub name: String,
    /// Names and lengths of the parts.
    pub parts: Vec<(&'static str, f64)>,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// Linear, for whole numbers.
    Linear,
    /// Logarithmic, for positive numbers.
    Logarithmic,
}

/// A plot.
pub enum Plot {
    /// Curves.
    Lines {
        /// Title above the plot.
        title: String,
        /// Labels of x and y.
        axes: [&'static str; 2],
        /// Scales of x and y.
        scales: [Scale; 2],
        /// The curves.
        lines: Vec<Line>,
    },
    /// Stacked bars of seconds.
    Bars {
        /// Title above the plot.
        title: String,
        /// The bars from top to bottom.
        bars: Vec<Bar>,
    },
}

/// Width of a plot, in its own units: about the width of a phone, so that letters there have their nominal height.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 70.0;
/// Line colours that are distinct in light and dark mode, also for colour-blind readers.
const LINE_COLORS: [&str; 10] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c564b", "#7f7f7f", "#6a3d9a", "#e31a1c"];
const STYLE: &str = ":root{color-scheme:light dark}body{font:16px/1.4 system-ui,sans-serif;margin:0 auto;padding:1rem;\
max-width:72rem;color:#222;background:#fff}h1{font-size:1.3rem}main{display:grid;gap:1.5rem;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}svg{width:100%;height:auto;color:inherit}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#16181c}}";

fn color(i: usize) -> &'static str {
    LINE_COLORS[i % LINE_COLORS.len()]
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The HTML page of `plots`.
pub fn html(title: &str, plots: &[Plot]) -> String {
    let title = escape(title);
    let plots: String = plots.iter().map(|p| format!("<figure style=\"margin:0\">{}</figure>\n", svg(p))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n<main>\n{plots}</main></body></html>\n"
    )
}

/// A plot as a separate file, on white.
pub fn alone(plot: &Plot) -> String {
    let body = svg(plot).replacen("<svg ", "<svg style=\"background:#fff;color:#222\" ", 1);
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{body}\n")
}

fn svg(plot: &Plot) -> String {
    let (title, body, height) = match plot {
        Plot::Lines { title, axes, scales, lines } => {
            (title, curves(*axes, *scales, lines), HEIGHT + 20.0 * lines.len() as f64)
        }
        Plot::Bars { title, bars } => (title, stacked(bars), 130.0 + 44.0 * bars.len() as f64),
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\" \
         font-family=\"system-ui,sans-serif\" font-size=\"13\" fill=\"currentColor\">\
         <text x=\"{1}\" y=\"20\" font-size=\"15\" font-weight=\"600\" text-anchor=\"middle\">{0}</text>{body}</svg>",
        escape(title),
        WIDTH / 2.0
    )
}

/// An axis: its scale and its range (in decades if logarithmic). [`Axis::place`] maps a value to 0 … 1.
struct Axis(Scale, f64, f64);

impl Axis {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.filter(|x| *x > 0.0).fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
        if low > high {
            return Axis(scale, 0.0, 1.0);
        }
        match scale {
            Scale::Linear => Axis(scale, low - 0.5, high + 0.5),
            Scale::Logarithmic => {
                let (low, high) = (low.log10() - 0.05, high.log10() + 0.05);
                Axis(scale, low, high.max(low + 0.3))
            }
        }
    }
    fn place(&self, x: f64) -> f64 {
        let x = if self.0 == Scale::Linear { x } else { x.log10() };
        (x - self.1) / (self.2 - self.1)
    }
    /// Tick positions: up to nine whole numbers; or powers of ten, and 2 and 5 times powers of ten where powers alone
    /// are few.
    fn ticks(&self) -> Vec<f64> {
        let step = ((self.2 - self.1) / 8.0).ceil().max(1.0) as usize;
        let whole = (self.1.floor() as i32..=self.2.ceil() as i32).step_by(step);
        let all: Vec<f64> = match self.0 {
            Scale::Linear => whole.map(f64::from).collect(),
            Scale::Logarithmic => {
                let digits: &[f64] = if self.2 - self.1 < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                whole.flat_map(|e| digits.iter().map(move |d| d * 10f64.powi(e))).collect()
            }
        };
        all.into_iter().filter(|x| (0.0..=1.0).contains(&self.place(*x))).collect()
    }
}

/// A tick label such as 1e-6, 0.05, 20 or 1e6.
fn label(x: f64) -> String {
    if (1e-2..1e5).contains(&x) { format!("{}", (x * 1e6).round() / 1e6) } else { format!("{x:.0e}") }
}

fn curves(axes: [&str; 2], scales: [Scale; 2], lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|l| &l.points);
    let [x, y] = [0, 1].map(|a| Axis::of(scales[a], all().map(|p| p[a])));
    let (left, right, top, bottom) = (MARGIN, WIDTH - 16.0, 36.0, HEIGHT - 48.0);
    let at = |p: [f64; 2]| (left + x.place(p[0]) * (right - left), bottom - y.place(p[1]) * (bottom - top));
    let mut out = String::new();
    for t in x.ticks() {
        let (px, _) = at([t, 1.0]);
        let _ = write!(
            out,
            "<path d=\"M{px:.1} {top}V{bottom}\" stroke=\"currentColor\" opacity=\".15\"/>\
             <text x=\"{px:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            label(t)
        );
    }
    for t in y.ticks() {
        let (_, py) = at([1.0, t]);
        let _ = write!(
            out,
            "<path d=\"M{left} {py:.1}H{right}\" stroke=\"currentColor\" opacity=\".15\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            py + 4.0,
            label(t)
        );
    }
    let _ = write!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (left + right) / 2.0,
        bottom + 38.0,
        axes[0],
        (top + bottom) / 2.0,
        axes[1]
    );
    for (i, line) in lines.iter().enumerate() {
        let mut points: Vec<(f64, f64)> =
            line.points.iter().filter(|p| p[0] > 0.0 && p[1] > 0.0).map(|p| at(*p)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let c = color(line.color);
        if !path.is_empty() {
            let _ = write!(out, "<path d=\"M{}\" fill=\"none\" stroke=\"{c}\" stroke-width=\"2\"/>", path.join("L"));
        }
        for (x, y) in points {
            let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{c}\"/>");
        }
        let y = HEIGHT + 20.0 * i as f64;
        let _ = write!(
            out,
            "<path d=\"M{left} {y}h24\" stroke=\"{c}\" stroke-width=\"3\"/><text x=\"{}\" y=\"{}\">{}</text>",
            left + 32.0,
            y + 4.0,
            escape(&line.name)
        );
    }
    out
}

fn stacked(bars: &[Bar]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in bars.iter().flat_map(|b| &b.parts) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let total = |b: &Bar| b.parts.iter().map(|p| p.1).sum::<f64>();
    let longest = bars.iter().map(total).fold(0.0, f64::max);
    let mut out = String::new();
    for (k, bar) in bars.iter().enumerate() {
        let (y, mut x) = (36.0 + 44.0 * k as f64, 16.0);
        let _ = write!(
            out,
            "<text x=\"16\" y=\"{}\">{}: {} s</text>",
            y + 12.0,
            escape(&bar.name),
            label((total(bar) * 1e4).round() / 1e4)
        );
        for (name, seconds) in &bar.parts {
            let w = seconds / longest * (WIDTH - 32.0);
            let c = color(names.iter().position(|n| n == name).unwrap_or(0));
            let _ = write!(out, "<rect x=\"{x:.1}\" y=\"{}\" width=\"{w:.1}\" height=\"18\" fill=\"{c}\"/>", y + 18.0);
            x += w;
        }
    }
    let y = 60.0 + 44.0 * bars.len() as f64;
    for (i, name) in names.iter().enumerate() {
        let (x, y) = (16.0 + 100.0 * (i % 4) as f64, y + 24.0 * (i / 4) as f64);
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            y - 11.0,
            color(i),
            x + 20.0,
            y + 1.0
        );
    }
    out
}
