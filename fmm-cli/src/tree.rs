//! `fmm tree`: draws the boxes of a tree and the lists of one box.

use crate::args::{DemoName, TreeArgs};
use crate::failure::Failure;
use crate::{kernel, npy, print, run};
use adaptive2d::{ConnectOptions, Pyramid, PyramidOptions};
use fmm_traits::tree::NONE;
use fmm_traits::{Hierarchy, Lists};
use std::fmt::Write;

/// Length of the longer side of the picture, in pixels.
const PICTURE_SIZE: f64 = 1000.0;
/// Default number of points of the demo.
const DEMO_POINTS: usize = 5000;
/// Largest magnitude of a coordinate.
const MAX_COORDINATE: f64 = 1e100;

/// Kinds of interaction of the box in the middle with another box, with their colours.
const INTERACTION_COLORS: [(&str, &str); 5] = [
    ("the box", "#000000"),
    ("P2P (U)", "#777777"),
    ("M2L (V)", "#d9d9d9"),
    ("M2P (W)", "#7fc97f"),
    ("P2L (X)", "#80b1d3"),
];

/// Colour of the M2L source boxes of the box's ancestors, in the plane.
const ANCESTOR_COLOR: &str = "#f2f2f2";

/// Rectangles; later rectangles cover earlier ones.
struct Picture {
    low: [f64; 2],
    side: f64,
    text: String,
}

impl Picture {
    /// An empty picture of the square with lower corner `low`.
    fn new(low: [f64; 2], side: f64) -> Self {
        Picture { low, side: if side > 0.0 { side } else { 1.0 }, text: String::new() }
    }

    /// Adds the rectangle from `low` to `high`.
    fn rectangle(&mut self, low: [f64; 2], high: [f64; 2], fill: &str) {
        let unit = PICTURE_SIZE / self.side;
        let (x, y) = ((low[0] - self.low[0]) * unit, PICTURE_SIZE - (high[1] - self.low[1]) * unit);
        let (w, h) = ((high[0] - low[0]) * unit, (high[1] - low[1]) * unit);
        let _ = writeln!(
            self.text,
            r##"<rect x="{x:.2}" y="{y:.2}" width="{w:.2}" height="{h:.2}" fill="{fill}" stroke="#333" stroke-width="0.6"/>"##
        );
    }

    /// The SVG text of the picture.
    fn svg(&self) -> String {
        let (height, mut legend) = (PICTURE_SIZE + 40.0, String::new());
        for (i, (name, fill)) in INTERACTION_COLORS.iter().enumerate() {
            let x = 10.0 + 190.0 * i as f64;
            let y = PICTURE_SIZE + 14.0;
            let _ = writeln!(
                legend,
                r##"<rect x="{x}" y="{y}" width="16" height="16" fill="{fill}" stroke="#333"/><text x="{}" y="{}" font-family="sans-serif" font-size="15">{name}</text>"##,
                x + 22.0,
                y + 13.0
            );
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PICTURE_SIZE} {height}\">\n<rect width=\"{PICTURE_SIZE}\" height=\"{height}\" fill=\"white\"/>\n{}{legend}</svg>\n",
            self.text
        )
    }
}

/// Draws the picture of `fmm tree`.
pub fn tree(args: &TreeArgs) -> Result<(), Failure> {
    let (points, dim, cloud) = match &args.sources {
        Some(path) => {
            let array = npy::read(path)?;
            if !(2..=3).contains(&array.columns) {
                let reason = format!("sources have {} columns, expected 2 or 3", array.columns);
                return Err(Failure::file(path, reason));
            }
            (array.values, array.columns, String::new())
        }
        None => {
            let name = args.demo.unwrap_or(DemoName::Normal2d);
            let demo = kernel::cloud(name);
            let n = args.n.unwrap_or(DEMO_POINTS);
            // Points in both orders, boxes and lists.
            run::fits((n as u64).saturating_mul(500), &format!("{n} points"))?;
            (fmm::demo::points(demo, n, args.seed), demo.dim(), format!("{n} points, {}: ", kernel::demo_name(name)))
        }
    };
    if let Some(i) = points.iter().position(|x| !x.is_finite()) {
        let (row, column) = (i / dim, i % dim);
        return Err(fmm::Error::NotFinite { array: "sources", row, column, value: points[i] }.into());
    }
    if points.is_empty() {
        return Err(Failure::Input("no points to draw".into()));
    }
    if let Some(x) = points.iter().find(|x| x.abs() > MAX_COORDINATE) {
        return Err(Failure::Input(format!("coordinate {x:e} is beyond {MAX_COORDINATE:e}, where squares overflow")));
    }
    if dim == 3 && args.theta.is_some() {
        return Err(Failure::Input("--theta has no meaning for points in space".into()));
    }
    let (picture, summary) = if dim == 2 { plane(&points, args)? } else { slice(&points, args)? };
    std::fs::write(&args.plot, picture.svg()).map_err(|e| Failure::file(&args.plot, e))?;
    print(&format!("{cloud}{summary}\n"))
}

/// The rows of box `b`: P2P, M2L, M2P and P2L, in the order of [`INTERACTION_COLORS`].
fn rows(lists: &Lists, b: usize) -> [&[u32]; 4] {
    [lists.p2p.row(b), lists.m2l.row(b), lists.m2p.row(b), lists.p2l.row(b)]
}

fn summary<H: Hierarchy>(tree: &H, lists: &Lists, b: usize) -> String {
    let counts = rows(lists, b).map(<[u32]>::len);
    let [u, v, w, x] = counts;
    let leaves = (0..tree.boxes()).filter(|&b| tree.is_leaf(b)).count();
    format!(
        "{} levels, {} boxes, {leaves} leaves; box {b}: P2P {u}, M2L {v}, M2P {w}, P2L {x}",
        tree.levels(),
        tree.boxes()
    )
}

/// The leaves of a pyramid and the coupling of one leaf (Goude & Engblom 2012, fig. 2.1 a). The weak couplings of its
/// ancestors are drawn in a paler colour, so that the picture covers the whole cloud.
fn plane(points: &[f64], args: &TreeArgs) -> Result<(Picture, String), Failure> {
    let options = PyramidOptions { population: args.ncrit.unwrap_or(40) as f64, depth: None };
    let pyramid = Pyramid::build(points, None, &options)?;
    let theta = args.theta.unwrap_or(0.5);
    let lists = adaptive2d::connect(&pyramid, &ConnectOptions { theta, ..ConnectOptions::default() })?;
    let tiles = tiles(&pyramid);
    let [low, high] = tiles[0];
    let mut picture = Picture::new(low, (high[0] - low[0]).max(high[1] - low[1]));
    let leaves = pyramid.level(pyramid.depth());
    let b = middle(&pyramid, leaves.clone().filter(|&b| !pyramid.sources_of(b).is_empty()));
    let mut draw = |b: usize, fill: &str| picture.rectangle(tiles[b][0], tiles[b][1], fill);
    let mut ancestor = pyramid.parent(b);
    while ancestor != NONE {
        lists.m2l.row(ancestor as usize).iter().for_each(|&s| draw(s as usize, ANCESTOR_COLOR));
        ancestor = pyramid.parent(ancestor as usize);
    }
    leaves.for_each(|leaf| draw(leaf, "none"));
    for (kind, row) in rows(&lists, b).into_iter().enumerate() {
        row.iter().for_each(|&s| draw(s as usize, INTERACTION_COLORS[kind + 1].1));
    }
    draw(b, INTERACTION_COLORS[0].1);
    Ok((picture, summary(&pyramid, &lists, b)))
}

/// The box whose centre is nearest to the centre of the root.
fn middle<H: Hierarchy>(tree: &H, boxes: impl Iterator<Item = usize>) -> usize {
    let level = |b: usize| (0..tree.levels()).find(|&l| tree.level(l).contains(&b)).unwrap_or(0);
    let root = tree.cube(0, 0).center;
    let distance = |b: usize| {
        let c = tree.cube(b, level(b)).center;
        (0..3).map(|a| (c[a] - root[a]).powi(2)).sum::<f64>()
    };
    boxes.min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

/// Lower and upper corner of the rectangle that each box of a pyramid cuts out of the root's rectangle.
fn tiles(pyramid: &Pyramid) -> Vec<[[f64; 2]; 2]> {
    // Positions of a box are consecutive, so each half of a box is a range of its points.
    let bounds = |range: std::ops::Range<usize>| {
        let all = range.map(|i| [pyramid.sources.x[i], pyramid.sources.y[i]]);
        all.fold([[f64::INFINITY; 2], [f64::NEG_INFINITY; 2]], |[low, high], p| {
            [[low[0].min(p[0]), low[1].min(p[1])], [high[0].max(p[0]), high[1].max(p[1])]]
        })
    };
    // Cuts a tile in two, between the points of the two halves.
    let halves = |[low, high]: [[f64; 2]; 2], range: std::ops::Range<usize>, middle: usize| {
        let (a, b) = (bounds(range.start..middle), bounds(middle..range.end));
        let gap = |axis: usize| b[0][axis] - a[1][axis];
        let axis = usize::from(gap(1) > gap(0) || !gap(0).is_finite());
        let cut = if gap(axis).is_finite() { 0.5 * (a[1][axis] + b[0][axis]) } else { high[axis] };
        let (mut left, mut right) = ([low, high], [low, high]);
        left[1][axis] = cut;
        right[0][axis] = cut;
        [left, right]
    };
    let mut tiles = vec![bounds(0..pyramid.sources.len()); 1];
    for b in 0..Pyramid::level(pyramid, pyramid.depth()).start {
        let [first, last] = [4 * b + 1, 4 * b + 4].map(|c| pyramid.sources_of(c));
        let middle = pyramid.sources_of(4 * b + 2).end;
        let two = halves(tiles[b], first.start..last.end, middle);
        tiles.extend(halves(two[0], first.start..middle, first.end));
        tiles.extend(halves(two[1], middle..last.end, last.start));
    }
    tiles
}

/// The leaves of an octree that meet a plane across z through one leaf, and the U, V, W and X lists of this leaf.
fn slice(points: &[f64], args: &TreeArgs) -> Result<(Picture, String), Failure> {
    let options =
        fmm_tree::BuildOptions { ncrit: args.ncrit.map(|k| k as usize), occupancy: 40.0, ..Default::default() };
    let tree = fmm_tree::build(points, None, &options)?;
    let lists = fmm_tree::uvwx(&tree, &fmm_tree::ListOptions { m2p_min_sources: 0, p2l_min_targets: 0 })?;
    let levels: Vec<usize> = (0..tree.levels()).flat_map(|l| tree.level(l).map(move |_| l)).collect();
    // The leaf with the largest number of non-empty lists.
    let leaves = (0..tree.len()).filter(|&b| tree.is_leaf(b) && !tree.sources_of(b).is_empty());
    let ways = |b: usize| rows(&lists, b).iter().filter(|row| !row.is_empty()).count();
    let most = leaves.clone().map(ways).max().unwrap_or(0);
    let b = middle(&tree, leaves.filter(|&b| ways(b) == most));
    let z = tree.cube(b, levels[b]).center[2];
    let square = |b: usize| {
        let c = tree.cube(b, levels[b]);
        let half = 0.5 * c.side;
        let [low, high] = [-half, half].map(|h| [c.center[0] + h, c.center[1] + h]);
        ((c.center[2] - z).abs() < half).then_some([low, high])
    };
    let cut = || (0..tree.len()).filter(|&b| tree.is_leaf(b)).filter_map(square);
    let low = [0, 1].map(|a| cut().map(|s| s[0][a]).fold(f64::INFINITY, f64::min));
    let side = [0, 1].map(|a| cut().map(|s| s[1][a]).fold(f64::NEG_INFINITY, f64::max) - low[a]);
    let mut picture = Picture::new(low, side[0].max(side[1]));
    let mut draw = |b: usize, fill: &str| {
        if let Some([low, high]) = square(b) {
            picture.rectangle(low, high, fill);
        }
    };
    (0..tree.len()).filter(|&b| tree.is_leaf(b)).for_each(|b| draw(b, "none"));
    for (kind, row) in rows(&lists, b).into_iter().enumerate() {
        row.iter().for_each(|&s| draw(s as usize, INTERACTION_COLORS[kind + 1].1));
    }
    draw(b, INTERACTION_COLORS[0].1);
    Ok((picture, summary(&tree, &lists, b)))
}
