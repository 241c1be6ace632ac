//! Line charts and bars, as SVG. Published values are in the same chart.

use plotters::prelude::*;
use testbed::{Failure, Result};

use super::Results;

/// A plot of a part of the results.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Name of its file, without `.svg`.
    pub(crate) file: &'static str,
    part: &'static str,
    title: String,
    /// A condition, and the label of the axis. Without one there is a bar for each series.
    x: Option<(&'static str, &'static str)>,
    /// A measure, and the label of the axis.
    y: (&'static str, &'static str),
}

impl Plot {
    /// Medians over a condition, a line for each series.
    pub(crate) fn lines(
        file: &'static str,
        part: &'static str,
        x: (&'static str, &'static str),
        y: (&'static str, &'static str),
    ) -> Plot {
        Plot {
            file,
            part,
            title: String::new(),
            x: Some(x),
            y,
        }
    }

    /// Medians of all series, a bar each.
    pub(crate) fn bars(
        file: &'static str,
        part: &'static str,
        y: (&'static str, &'static str),
    ) -> Plot {
        Plot {
            file,
            part,
            title: String::new(),
            x: None,
            y,
        }
    }

    /// Sets a title other than that of the results.
    pub(crate) fn titled(mut self, title: impl Into<String>) -> Plot {
        self.title = title.into();
        self
    }

    /// Returns the title of the plot.
    pub(super) fn title<'a>(&'a self, results: &'a Results) -> &'a str {
        if self.title.is_empty() {
            &results.title
        } else {
            &self.title
        }
    }

    pub(super) fn svg(&self, results: &Results) -> Result<String> {
        let title = self.title(results);
        let mut svg = String::new();
        let drawn = match self.x {
            Some((condition, heading)) => {
                let lines = self.points(results, condition);
                Chart {
                    title,
                    x: heading,
                    y: self.y.1,
                    lines,
                }
                .draw(&mut svg)
            }
            None => Bars {
                title,
                y: self.y.1,
                bars: self.values(results),
            }
            .draw(&mut svg),
        };
        drawn.map_err(|error| Failure::new(format!("drawing {}: {error}", self.file)))?;
        Ok(svg)
    }

    /// Returns our lines in the order of their first samples, then published ones.
    fn points(&self, results: &Results, condition: &str) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for group in results.groups(Some(self.part)) {
            let first = group.samples[0];
            let Some(&x) = first.conditions.get(condition) else {
                continue;
            };
            let y = group.median(self.y.0);
            if y.is_finite() {
                add_point(&mut lines, &first.series, (x, y), false);
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        for published in &results.published {
            if let (Some(x), true) = (published.x, published.measure == self.y.0) {
                let name = format!("published: {}", published.series);
                add_point(&mut lines, &name, (x, published.value), true);
            }
        }
        lines
    }

    fn values(&self, results: &Results) -> Vec<Bar> {
        let groups = results.groups(Some(self.part)).into_iter();
        let own = groups.map(|group| Bar {
            name: group.samples[0].series.clone(),
            value: group.median(self.y.0),
            is_published: false,
        });
        let published = results.published.iter();
        let published = published.filter(|published| published.measure == self.y.0);
        let others = published.map(|published| Bar {
            name: format!("published: {} ({})", published.series, published.source),
            value: published.value,
            is_published: true,
        });
        own.chain(others)
            .filter(|bar| bar.value.is_finite())
            .collect()
    }
}

fn add_point(lines: &mut Vec<Line>, name: &str, point: (f64, f64), is_published: bool) {
    match lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.push(point),
        None => lines.push(Line {
            name: name.to_owned(),
            points: vec![point],
            is_published,
        }),
    }
}

const SIZE: (u32, u32) = (1160, 520);

/// Width left for names, right of a line chart, and left of bars.
const NAMES_WIDTH: u32 = 390;

/// Height of a name, and of a bar.
const ROW_HEIGHT: i32 = 20;

/// Colors of our bars, and of published ones.
const OWN_COLOR: RGBColor = RGBColor(21, 101, 192);
const PUBLISHED_COLOR: RGBColor = RGBColor(120, 160, 120);

const FONT: (&str, i32) = ("sans-serif", 13);
const TITLE_FONT: (&str, i32) = ("sans-serif", 18);

type Drawn<'a> = std::result::Result<(), Box<dyn std::error::Error + 'a>>;

/// A line chart. The x axis is logarithmic where it does not begin at 0.
struct Chart<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    lines: Vec<Line>,
}

/// A line through points in the order of x; points alone if published by others.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    is_published: bool,
}

impl Chart<'_> {
    fn draw<'s>(&self, svg: &'s mut String) -> Drawn<'s> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let x_most = points().map(|point| point.0).fold(1.0, f64::max);
        let y_most = points().map(|point| point.1).fold(0.0, f64::max);
        // A line of one point, or of zeros, is drawn, too.
        let y_range = 0.0..if y_most > 0.0 { y_most * 1.1 } else { 1.0 };
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (left, names) = area.split_horizontally(SIZE.0 - NAMES_WIDTH);
        let mut builder = ChartBuilder::on(&left);
        builder
            .caption(self.title, TITLE_FONT)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70);
        // The two kinds of axes are two types.
        macro_rules! draw_in {
            ($x_range:expr) => {{
                let mut chart = builder.build_cartesian_2d($x_range, y_range)?;
                chart
                    .configure_mesh()
                    .light_line_style(TRANSPARENT)
                    .x_desc(self.x)
                    .y_desc(self.y)
                    .x_label_formatter(&|x| format!("{x:.0}"))
                    .draw()?;
                for (index, line) in self.lines.iter().enumerate() {
                    let color = Palette99::pick(index).to_rgba();
                    let points = || line.points.iter().copied();
                    if line.is_published {
                        let marks = points().map(|at| TriangleMarker::new(at, 7, color));
                        chart.draw_series(marks)?;
                    } else {
                        let series = LineSeries::new(points(), color.stroke_width(2));
                        chart.draw_series(series.point_size(3))?;
                    }
                }
            }};
        }
        if x_least > 0.0 {
            draw_in!((x_least.min(x_most) / 1.1..x_most * 1.1).log_scale());
        } else {
            draw_in!(x_least..x_most * 1.1);
        }
        for (index, line) in self.lines.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let y = 60 + ROW_HEIGHT * index as i32;
            if line.is_published {
                names.draw(&TriangleMarker::new((10, y), 6, color))?;
            } else {
                names.draw(&PathElement::new([(0, y), (20, y)], color.stroke_width(2)))?;
            }
            names.draw(&Text::new(line.name.clone(), (28, y - 7), FONT))?;
        }
        area.present()?;
        drop((left, names, area));
        Ok(())
    }
}

/// A bar for each of some values.
struct Bars<'a> {
    title: &'a str,
    y: &'a str,
    bars: Vec<Bar>,
}

struct Bar {
    name: String,
    value: f64,
    is_published: bool,
}

impl Bars<'_> {
    fn draw<'s>(&self, svg: &'s mut String) -> Drawn<'s> {
        let most = self.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let top = 60;
        let height = top + ROW_HEIGHT * (self.bars.len() as i32 + 1);
        let area =
            SVGBackend::with_string(svg, (SIZE.0, height.unsigned_abs())).into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Text::new(self.title.to_owned(), (12, 10), TITLE_FONT))?;
        area.draw(&Text::new(
            self.y.to_owned(),
            (NAMES_WIDTH as i32, 38),
            FONT,
        ))?;
        // Room for the number right of the longest bar.
        let longest = f64::from(SIZE.0 - NAMES_WIDTH - 100);
        for (index, bar) in self.bars.iter().enumerate() {
            let y = top + ROW_HEIGHT * index as i32;
            let color = if bar.is_published {
                PUBLISHED_COLOR
            } else {
                OWN_COLOR
            };
            let length = if most > 0.0 {
                bar.value / most * longest
            } else {
                0.0
            };
            let begin = NAMES_WIDTH as i32;
            let end = begin + length as i32;
            let corners = [(begin, y), (end, y + ROW_HEIGHT - 5)];
            area.draw(&Rectangle::new(corners, color.filled()))?;
            area.draw(&Text::new(bar.name.clone(), (12, y), FONT))?;
            area.draw(&Text::new(format!("{:.2}", bar.value), (end + 6, y), FONT))?;
        }
        area.present()?;
        drop(area);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Published;
    use super::super::tests::results;
    use super::*;

    const LINES: Plot = Plot {
        file: "plot",
        part: "",
        title: String::new(),
        x: Some(("connections", "connections")),
        y: ("gbit_per_s", "Gbit/s"),
    };

    #[test]
    fn any_values_can_be_drawn() {
        for samples in [
            &[("a", 1.0, 3.0), ("a", 10.0, 5.0), ("b & c", 200.0, 1.0)][..],
            &[("a", 200.0, 0.0)],
            &[("a", 0.0, 2.0), ("a", 50.0, 1.0)],
            &[],
        ] {
            let results = results(samples);
            for plot in [LINES, Plot::bars("bars", "", ("gbit_per_s", "Gbit/s"))] {
                let svg = plot.titled("Title & more").svg(&results).unwrap();
                assert!(svg.trim_end().ends_with("</svg>"));
                assert!(svg.contains("Title &amp; more"));
                for (series, ..) in samples {
                    assert!(svg.contains(&series.replace('&', "&amp;")), "{series}");
                }
            }
        }
    }

    #[test]
    fn what_others_have_published_is_drawn_beside() {
        let mut results = results(&[("a", 1.0, 3.0)]);
        let published = |measure, x| Published {
            source: "figure 7",
            series: measure,
            measure,
            x,
            value: 78.1,
            unit: "Gbit/s",
        };
        results.publish_beside(&[
            published("gbit_per_s", Some(1.0)),
            published("timeouts", Some(1.0)),
        ]);
        let svg = LINES.svg(&results).unwrap();
        assert!(svg.contains("published: gbit_per_s"));
        assert!(!svg.contains("published: timeouts"), "another measure");
        let bars = Plot::bars("bars", "", ("gbit_per_s", "Gbit/s"));
        assert!(
            bars.svg(&results)
                .unwrap()
                .contains("published: gbit_per_s")
        );
    }
}
