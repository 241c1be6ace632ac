//! Line charts, as SVG.

use plotters::prelude::*;
use testbed::{Failure, Result};

/// A chart. The x axis is logarithmic.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) lines: Vec<Line>,
}

/// A line, through points in the order of x, all of them above 0.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

const SIZE: (u32, u32) = (900, 520);

impl Chart {
    /// Draws it.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg)
            .map_err(|error| Failure::new(format!("drawing {:?}: {error}", self.title)))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> std::result::Result<(), Box<dyn std::error::Error + '_>> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let x_most = points().map(|point| point.0).fold(1.0, f64::max);
        let y_most = points().map(|point| point.1).fold(0.0, f64::max);
        // A line of one point, or of zeros, has a place, too.
        let x_range = (x_least.min(x_most) / 1.1..x_most * 1.1).log_scale();
        let y_range = 0.0..(y_most * 1.1).max(1.0);

        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(x_range, y_range)?;
        chart
            .configure_mesh()
            .x_desc(&*self.x)
            .y_desc(&*self.y)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .draw()?;
        for (index, line) in self.lines.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            chart
                .draw_series(
                    LineSeries::new(line.points.iter().copied(), color.stroke_width(2))
                        .point_size(3),
                )?
                .label(&*line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        area.present()?;
        drop(chart);
        drop(area);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let line = Line {
            name: "a line".into(),
            points,
        };
        Chart {
            title: "Title & more".into(),
            x: "across".into(),
            y: "up".into(),
            lines: vec![line],
        }
    }

    #[test]
    fn any_values_can_be_drawn() {
        for points in [
            vec![(1.0, 3.0), (10.0, 5.0), (200.0, 1.0)],
            vec![(200.0, 0.0)],
            vec![],
        ] {
            let svg = chart(points).svg().unwrap();
            assert!(svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("a line") && svg.contains("Title &amp; more"));
        }
    }
}
