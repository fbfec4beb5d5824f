//! Where one method becomes faster than another, from times at several N.

/// The last N at which `ratio`, pairs of N and time of one method over that of another, crosses 1; geometric between
/// rows. As text: "below N" or "above N" if there is no such place.
pub fn crossing(ratio: &[(usize, f64)]) -> String {
    let at: Vec<(f64, f64)> = ratio.iter().map(|&(n, ratio)| ((n as f64).ln(), ratio.ln())).collect();
    let (Some(first), Some(last)) = (ratio.first(), ratio.last()) else { return "–".to_string() };
    let Some(cross) = at.windows(2).rev().find(|w| (w[0].1 > 0.0) != (w[1].1 > 0.0)) else {
        return if last.1 < 1.0 { format!("below {}", first.0) } else { format!("above {}", last.0) };
    };
    let part = cross[0].1 / (cross[0].1 - cross[1].1);
    format!("{:.1e}", (cross[0].0 + part * (cross[1].0 - cross[0].0)).exp())
}
