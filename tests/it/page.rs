//! The page of `fmm compare` in a real browser, at the width of a phone and of a desktop, in light and dark mode.
//! Nothing is cut off or overlaps, and letters are legible.

use crate::cli::fmm;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names under which Chromium is installed, as in `scripts/browser-test.sh`.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// A script that reports the layout of its page to the enclosing page, as JSON: widths, colours, the smallest height of
/// letters over all plots, the letters outside their plot, and the letters that overlap.
const PROBE_SCRIPT: &str = r#"<script>
const texts = [...document.querySelectorAll('svg text')].map(t => {
  const svg = t.ownerSVGElement, frame = svg.getBoundingClientRect(), box = t.getBoundingClientRect();
  const scale = frame.width / svg.viewBox.baseVal.width;
  return { svg, frame, box, name: t.textContent, size: parseFloat(getComputedStyle(t).fontSize) * scale };
});
const cut = texts.filter(t => t.box.left < t.frame.left - 1 || t.box.right > t.frame.right + 1
  || t.box.top < t.frame.top - 1 || t.box.bottom > t.frame.bottom + 1);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
const over = texts.filter((t, i) => texts.some((u, j) => j > i && u.svg === t.svg && meet(t.box, u.box)));
parent.postMessage(JSON.stringify({
  width: innerWidth, scroll: document.documentElement.scrollWidth, texts: texts.length,
  letters: Math.min(...texts.map(t => t.size)), cut: cut.map(t => t.name), over: over.map(t => t.name),
  columns: new Set([...document.querySelectorAll('svg')].map(s => Math.round(s.getBoundingClientRect().left))).size,
  colors: [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor],
}), '*');
</script></body>"#;

/// A page that encloses `probed.html` in a frame of the given width, since windows are never as narrow as a phone.
fn frame(width: usize) -> String {
    format!(
        "<!doctype html><meta name=\"color-scheme\" content=\"light dark\"><pre id=\"probe\"></pre><script>\
         onmessage = e => document.getElementById('probe').textContent = e.data;</script>\
         <iframe src=\"probed.html\" width=\"{width}\" height=\"900\" style=\"border:0\"></iframe>"
    )
}

/// The report of the probe for the page in `folder`, `width` pixels wide.
fn look(browser: &str, folder: &Path, width: usize, dark: bool) -> Value {
    let page = folder.join("frame.html");
    std::fs::write(&page, frame(width)).unwrap();
    let run = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"])
        .arg(format!("--blink-settings=preferredColorScheme={}", usize::from(!dark)))
        .args(["--window-size=1400,1000", "--virtual-time-budget=2000"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let dom = String::from_utf8(run.stdout).unwrap();
    let found = dom.split("<pre id=\"probe\">").nth(1).and_then(|rest| rest.split("</pre>").next()).unwrap();
    serde_json::from_str(&found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")).unwrap()
}

/// Relative luminance of `rgb(…)` (WCAG 2).
fn luminance(color: &Value) -> f64 {
    let digits = color.as_str().unwrap().trim_start_matches("rgb(").trim_end_matches(')');
    let channel = |text: &str| {
        let x = text.trim().parse::<f64>().unwrap() / 255.0;
        if x <= 0.04045 { x / 12.92 } else { ((x + 0.055) / 1.055).powf(2.4) }
    };
    digits.split(',').zip([0.2126, 0.7152, 0.0722]).map(|(text, weight)| weight * channel(text)).sum()
}

#[test]
#[ignore = "needs Chromium: scripts/browser-test.sh"]
fn the_page_of_compare_can_be_read_on_a_phone_and_in_the_dark() {
    let installed = |name: &&&str| Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok();
    let browser =
        BROWSERS.iter().find(installed).expect("no Chromium on this machine: scripts/browser-test.sh installs it");
    let folder = tempfile::tempdir().unwrap();
    let variants = "direct,equivalent,spherical+stencil119+fixed,treecode+0.6,treecode+equivalent";
    let args = ["compare", "--n", "500,1000,3000", "--orders", "3,5,8,12", "--error", "1e-3", "--repeat", "1"];
    let run = fmm(&[&args[..], &["--variants", variants, "--out", folder.path().to_str().unwrap()]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let page = std::fs::read_to_string(folder.path().join("compare.html")).unwrap();
    std::fs::write(folder.path().join("probed.html"), page.replace("</body>", PROBE_SCRIPT)).unwrap();
    for (width, columns) in [(390, 1), (1280, 2)] {
        for dark in [false, true] {
            let found = look(browser, folder.path(), width, dark);
            assert_eq!(found["width"], width, "{found}");
            assert!(found["scroll"].as_u64().unwrap() <= width as u64, "runs off the side: {found}");
            assert!(found["texts"].as_u64().unwrap() > 40 && found["letters"].as_f64().unwrap() >= 10.0, "{found}");
            assert_eq!((&found["cut"], &found["over"]), (&Value::Array(vec![]), &Value::Array(vec![])), "{width}");
            assert_eq!(found["columns"], columns, "{found}");
            let [front, back] = [0, 1].map(|i| luminance(&found["colors"][i]));
            let contrast = (front.max(back) + 0.05) / (front.min(back) + 0.05);
            assert!((front > back) == dark && contrast > 7.0, "{found}");
        }
    }
}
