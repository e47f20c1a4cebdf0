//! Pictures as tensors: decoded, resized to what a model takes, and with values in the range that it was trained on.

use std::io::Cursor;

use tensor_types::DataType;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::signature::{Format, Input};
use super::tensor::{Element, Values};

/// The longest side of a picture.
const LONGEST: usize = 16_384;

/// How pictures become what an input takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adjustment {
    /// `None`: the usual range of the input's data type.
    pub(super) scale: Option<Scale>,
    pub(super) fit: Fit,
    pub(super) order: Order,
}

/// The range of an image's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// 0 to 255.
    Bytes,
    /// 0 to 1.
    Unit,
    /// -1 to 1.
    Signed,
    /// 0 to 1, less ImageNet's mean, in its deviations.
    ImageNet,
}

/// How an image gets the size of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// Scales the image until it fills the input, and crops it around the centre.
    #[default]
    Crop,
    /// Scales height and width separately.
    Stretch,
    /// Scales the whole image into the input, and adds black borders.
    Pad,
}

/// The order of an image's colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// Blue, green, red.
    Bgr,
}

const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

impl Scale {
    /// The value for a level from 0 to 255.
    fn apply(self, level: f32, channel: usize) -> f32 {
        let (mean, deviation) = (IMAGENET_MEAN[channel % 3], IMAGENET_DEVIATION[channel % 3]);
        match self {
            Self::Bytes => level,
            Self::Unit => level / 255.0,
            Self::Signed => level / 127.5 - 1.0,
            Self::ImageNet => (level / 255.0 - mean) / deviation,
        }
    }
}

/// A picture in red, green, blue and opacity, from 0 to 255.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<[f32; 4]>,
}

/// Where an input has the dimensions of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    height: usize,
    width: usize,
    channels: Option<usize>,
}

impl Layout {
    /// The layout of an input; `None` if it cannot be an image.
    fn of(input: &Input) -> Option<Self> {
        let rank = input.shape.len();
        let is_channels = |dimension: Option<usize>| {
            dimension
                .and_then(|dimension| input.shape.get(dimension))
                .is_some_and(|size| matches!(size, Some(1 | 3 | 4)))
        };
        let first = rank.checked_sub(3);
        match input.format {
            Format::ChannelsFirst | Format::Unknown if is_channels(first) => {
                Some(Self { height: rank - 2, width: rank - 1, channels: first })
            }
            Format::ChannelsLast | Format::Unknown if first.is_some() && is_channels(rank.checked_sub(1)) => {
                Some(Self { height: rank - 3, width: rank - 2, channels: Some(rank - 1) })
            }
            _ => {
                let (height, width) = (rank.checked_sub(2)?, rank - 1);
                let is_side = |dimension: usize| input.shape[dimension].is_some_and(|size| size >= 8);
                (is_side(height) && is_side(width)).then_some(Self { height, width, channels: None })
            }
        }
    }
}

/// The shape and elements of an input from a picture.
///
/// # Errors
/// The input cannot be an image.
pub(super) fn tensor(
    picture: &Picture,
    input: &Input,
    scale: Option<Scale>,
    fit: Fit,
    order: Order,
) -> Result<Values, String> {
    let is_float =
        matches!(input.data_type, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64);
    let layout = Layout::of(input).filter(|_| input.data_type != DataType::Bool);
    let layout = layout.ok_or_else(|| format!("input '{}' is {}, no image", input.name, input.describe()))?;
    let scale = scale.unwrap_or(if is_float { Scale::Unit } else { Scale::Bytes });
    let mut shape: Vec<u64> = input.shape.iter().map(|size| size.unwrap_or(1)).collect();
    let side = |dimension: usize, own: usize| {
        let size = input.shape[dimension].map_or(Ok(own), usize::try_from);
        size.ok()
            .filter(|size| (1..=LONGEST).contains(size))
            .ok_or_else(|| format!("input '{}' is too large for an image", input.name))
    };
    let (height, width) = (side(layout.height, picture.height)?, side(layout.width, picture.width)?);
    (shape[layout.height], shape[layout.width]) = (height as u64, width as u64);
    let channels = layout.channels.map_or(1, |dimension| shape[dimension] as usize);
    let picture = picture.fitted(width, height, fit);
    let value = |pixel: &[f32; 4], channel: usize| {
        let [red, green, blue, alpha] = *pixel;
        let level = match (channels, order) {
            (1, _) => 0.299 * red + 0.587 * green + 0.114 * blue,
            (_, Order::Rgb) => [red, green, blue, alpha][channel],
            (_, Order::Bgr) => [blue, green, red, alpha][channel],
        };
        let value = scale.apply(level, channel);
        if is_float { Element::Float(value.into()) } else { Element::Integer(value.round() as i128) }
    };
    let is_planar = layout.channels.is_some_and(|channels| channels < layout.height);
    let pixels = &picture.pixels;
    let elements: Vec<_> = match is_planar {
        true => {
            (0..channels).flat_map(|channel| pixels.iter().map(move |pixel| value(pixel, channel))).collect()
        }
        false => {
            pixels.iter().flat_map(|pixel| (0..channels).map(move |channel| value(pixel, channel))).collect()
        }
    };
    match shape.iter().product::<u64>() == elements.len() as u64 {
        true => Ok((shape, elements)),
        false => Err(format!("input '{}' is {}, more than one image", input.name, input.describe())),
    }
}

impl Picture {
    /// Decodes a PNG or JPEG file.
    ///
    /// # Errors
    /// The file is of another format, damaged, or too large.
    pub(super) fn decode(file: &[u8]) -> Result<Self, String> {
        match file {
            [0x89, b'P', b'N', b'G', ..] => {
                Self::decode_png(file).map_err(|error| format!("cannot be decoded: {error}"))
            }
            [0xff, 0xd8, ..] => {
                Self::decode_jpeg(file).map_err(|error| format!("cannot be decoded: {error}"))
            }
            _ => Err("is neither a PNG nor a JPEG file".into()),
        }
    }

    fn decode_png(file: &[u8]) -> Result<Self, String> {
        let text = |error: png::DecodingError| error.to_string();
        let mut decoder = png::Decoder::new(Cursor::new(file));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(text)?;
        check_size(reader.info().width as usize, reader.info().height as usize)?;
        let mut buffer = vec![0; reader.output_buffer_size().ok_or("its size is unknown")?];
        let frame = reader.next_frame(&mut buffer).map_err(text)?;
        let samples = frame.color_type.samples();
        let pixels = buffer[..frame.buffer_size()].chunks_exact(samples).map(pixel).collect();
        Ok(Self { width: frame.width as usize, height: frame.height as usize, pixels })
    }

    fn decode_jpeg(file: &[u8]) -> Result<Self, String> {
        let options = DecoderOptions::default()
            .jpeg_set_out_colorspace(ColorSpace::RGB)
            .set_max_width(LONGEST)
            .set_max_height(LONGEST);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
        let bytes = decoder.decode().map_err(|error| error.to_string())?;
        let (width, height) = decoder.dimensions().ok_or("its size is unknown")?;
        Ok(Self { width, height, pixels: bytes.chunks_exact(3).map(pixel).collect() })
    }

    /// The picture in this size.
    fn fitted(&self, width: usize, height: usize, fit: Fit) -> Self {
        let scales = (width as f32 / self.width as f32, height as f32 / self.height as f32);
        let scale = match fit {
            Fit::Crop => scales.0.max(scales.1),
            Fit::Pad => scales.0.min(scales.1),
            Fit::Stretch => 1.0,
        };
        let (wide, high) = match fit {
            Fit::Stretch => (width as f32, height as f32),
            Fit::Crop | Fit::Pad => (self.width as f32 * scale, self.height as f32 * scale),
        };
        let columns = weights(self.width, width, wide);
        let rows = weights(self.height, height, high);
        let mut squeezed = Vec::with_capacity(width * self.height);
        for row in self.pixels.chunks_exact(self.width) {
            squeezed.extend(columns.iter().map(|column| column.sum(|index| row[index])));
        }
        let mut pixels = Vec::with_capacity(width * height);
        for row in &rows {
            pixels.extend((0..width).map(|column| row.sum(|index| squeezed[index * width + column])));
        }
        Self { width, height, pixels }
    }
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    let fits = width <= LONGEST && height <= LONGEST;
    if fits { Ok(()) } else { Err(format!("{width} x {height} pixels are more than {LONGEST} x {LONGEST}")) }
}

/// A pixel from its samples: gray, gray and opacity, colours, or colours and opacity. What is transparent becomes black.
fn pixel(samples: &[u8]) -> [f32; 4] {
    let [red, green, blue, alpha] = match *samples {
        [gray] => [gray, gray, gray, 255],
        [gray, alpha] => [gray, gray, gray, alpha],
        [red, green, blue] => [red, green, blue, 255],
        [red, green, blue, alpha] => [red, green, blue, alpha],
        _ => [0; 4],
    }
    .map(f32::from);
    let opacity = alpha / 255.0;
    [red * opacity, green * opacity, blue * opacity, alpha]
}

/// The pixels that make a pixel of a resized line, and their weights. There are none outside of the picture.
struct Window {
    first: usize,
    weights: Vec<f32>,
}

impl Window {
    fn sum(&self, pixel: impl Fn(usize) -> [f32; 4]) -> [f32; 4] {
        if self.weights.is_empty() {
            return [0.0, 0.0, 0.0, 255.0];
        }
        let mut sum = [0.0; 4];
        for (index, weight) in self.weights.iter().enumerate() {
            for (sum, value) in sum.iter_mut().zip(pixel(self.first + index)) {
                *sum += weight * value;
            }
        }
        sum
    }
}

/// The windows of a line of `from` pixels that is resized to `extent` pixels, of which the middle `to` are kept. Weights are a
/// triangle as wide as a pixel of the coarser line.
fn weights(from: usize, to: usize, extent: f32) -> Vec<Window> {
    let step = from as f32 / extent;
    let support = step.max(1.0);
    let offset = (to as f32 - extent) / 2.0;
    let window = |index: usize| {
        let place = index as f32 + 0.5 - offset;
        if place < 0.0 || place > extent {
            return Window { first: 0, weights: Vec::new() };
        }
        let center = place * step;
        let first = (center - support).floor().max(0.0) as usize;
        let last = ((center + support).ceil() as usize).min(from);
        let weight = |index: usize| (1.0 - ((index as f32 + 0.5 - center) / support).abs()).max(0.0);
        let mut weights: Vec<f32> = (first..last).map(weight).collect();
        let total: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        Window { first, weights }
    };
    (0..to).map(window).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::signature::Signature;
    use super::*;

    fn input(data_type: &str, shape: Value, format: &str) -> Input {
        let metadata = json!({"inputs": [{"name": "x", "datatype": data_type, "shape": shape}]});
        let config = json!({"input": [{"name": "x", "format": format}]});
        Signature::read(&metadata, &config).unwrap().inputs.swap_remove(0)
    }

    /// A picture whose pixels are numbered from 0.
    fn picture(width: usize, height: usize) -> Picture {
        let pixels = (0..width * height).map(|index| [index as f32, 100.0, 200.0, 255.0]).collect();
        Picture { width, height, pixels }
    }

    fn png(color: png::ColorType, width: u32, height: u32, samples: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(samples).unwrap();
        file
    }

    #[test]
    fn dimensions_of_images_are_found() {
        for (shape, format, expected) in [
            (json!([3, 224, 224]), "", Some((1, 2, Some(0)))),
            (json!([-1, 3, 224, 224]), "", Some((2, 3, Some(1)))),
            (json!([-1, 224, 224, 3]), "", Some((1, 2, Some(3)))),
            (json!([-1, 1, 28, 28]), "", Some((2, 3, Some(1)))),
            (json!([-1, 3, -1, -1]), "", Some((2, 3, Some(1)))),
            (json!([-1, 3, 3, 3]), "FORMAT_NHWC", Some((1, 2, Some(3)))),
            (json!([-1, 28, 28]), "", Some((1, 2, None))),
            (json!([28, 28]), "", Some((0, 1, None))),
            (json!([-1, 4]), "", None),
            (json!([4]), "", None),
            (json!([]), "", None),
        ] {
            let layout = Layout::of(&input("FP32", shape.clone(), format));
            let found = layout.map(|layout| (layout.height, layout.width, layout.channels));
            assert_eq!(found, expected, "{shape} {format}");
        }
    }

    #[test]
    fn values_have_the_order_and_range_of_the_input() {
        let numbers = |input: &Input, scale, order| {
            let (shape, elements) = tensor(&picture(2, 1), input, scale, Fit::Stretch, order).unwrap();
            (shape, elements.iter().map(|element| element.number().unwrap()).collect::<Vec<_>>())
        };
        let (bytes, none) = (Some(Scale::Bytes), None);
        for (data_type, shape, scale, order, expected) in [
            ("UINT8", json!([-1, 1, 2, 3]), none, Order::Rgb, &[0., 100., 200., 1., 100., 200.][..]),
            ("UINT8", json!([-1, 1, 2, 3]), none, Order::Bgr, &[200., 100., 0., 200., 100., 1.]),
            ("FP32", json!([3, -1, -1]), bytes, Order::Rgb, &[0., 1., 100., 100., 200., 200.]),
            ("INT32", json!([3, 1, 2]), none, Order::Bgr, &[200., 200., 100., 100., 0., 1.]),
            ("UINT8", json!([4, 1, 2]), none, Order::Rgb, &[0., 1., 100., 100., 200., 200., 255., 255.]),
            ("UINT8", json!([1, 1, 2]), none, Order::Rgb, &[82., 82.]),
        ] {
            // Channels come last where both ends could be channels.
            let format = if shape[3] == 3 { "FORMAT_NHWC" } else { "" };
            let (found, values) = numbers(&input(data_type, shape.clone(), format), scale, order);
            assert_eq!(values, expected, "{data_type} {shape}");
            assert_eq!(found.iter().product::<u64>(), expected.len() as u64);
        }
        for (scale, level, channel, expected) in [
            (Scale::Unit, 255.0, 0, 1.0),
            (Scale::Signed, 0.0, 1, -1.0),
            (Scale::ImageNet, 255.0 * 0.456, 1, 0.0),
            (Scale::ImageNet, 255.0 * (0.406 + 0.225), 2, 1.0),
        ] {
            assert!((scale.apply(level, channel) - expected).abs() < 1e-5, "{scale:?}");
        }
        for (data_type, shape, expected) in [
            ("FP32", json!([4]), "no image"),
            ("BOOL", json!([3, 8, 8]), "no image"),
            ("FP32", json!([2, 3, 8, 8]), "more than one image"),
            ("FP32", json!([3, 100000, 8]), "too large"),
        ] {
            let error = tensor(&picture(2, 2), &input(data_type, shape, ""), None, Fit::Crop, Order::Rgb)
                .unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest! {
        /// Resizing keeps a picture of one colour, except for borders.
        #[test]
        fn plain_pictures_stay_plain(width in 1_usize..20, height in 1_usize..20, wide in 1_usize..20, high in 1_usize..20, how in 0_usize..3) {
            let fit = [Fit::Crop, Fit::Stretch, Fit::Pad][how];
            let plain = Picture { width, height, pixels: vec![[50.0, 60.0, 70.0, 255.0]; width * height] };
            let fitted = plain.fitted(wide, high, fit);
            prop_assert_eq!(fitted.pixels.len(), wide * high);
            let is_near = |pixel: &[f32; 4], expected: [f32; 4]| pixel.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.01);
            for pixel in &fitted.pixels {
                let is_border = fit == Fit::Pad && is_near(pixel, [0.0, 0.0, 0.0, 255.0]);
                prop_assert!(is_border || is_near(pixel, [50.0, 60.0, 70.0, 255.0]), "{:?}", pixel);
            }
        }

        /// No file makes the decoders panic.
        #[test]
        fn damaged_files_are_refused(cut in 0_usize..200, at in 0_usize..200, byte in any::<u8>()) {
            let mut file = png(png::ColorType::Rgb, 9, 5, &[7; 135]);
            let length = file.len();
            file.truncate(cut % length);
            if let Some(place) = file.get_mut(at) {
                *place = byte;
            }
            if let Err(error) = Picture::decode(&file) {
                prop_assert!(error.contains("decoded") || error.contains("neither"), "{}", error);
            }
        }
    }

    #[test]
    fn picture_of_the_right_size_is_unchanged_and_halves_are_means() {
        let own = picture(4, 2);
        for fit in [Fit::Crop, Fit::Stretch, Fit::Pad] {
            assert_eq!(own.fitted(4, 2, fit), own);
        }
        let cropped = own.fitted(2, 2, Fit::Crop);
        assert_eq!(cropped.pixels.iter().map(|pixel| pixel[0]).collect::<Vec<_>>(), [1.0, 2.0, 5.0, 6.0]);
        let padded = own.fitted(4, 4, Fit::Pad);
        assert_eq!(padded.pixels[..4], [[0.0, 0.0, 0.0, 255.0]; 4]);
        assert_eq!(padded.pixels[4..12], own.pixels);
    }

    #[test]
    fn png_files_of_all_colours_are_decoded() {
        use png::ColorType::*;
        for (color, samples, expected) in [
            (Grayscale, &[9][..], [9.0, 9.0, 9.0, 255.0]),
            (GrayscaleAlpha, &[9, 0], [0.0, 0.0, 0.0, 0.0]),
            (Rgb, &[1, 2, 3], [1.0, 2.0, 3.0, 255.0]),
            (Rgba, &[255, 255, 0, 51], [51.0, 51.0, 0.0, 51.0]),
        ] {
            let decoded = Picture::decode(&png(color, 1, 1, samples)).unwrap();
            assert_eq!(decoded.pixels, [expected]);
        }
        for file in [&b""[..], b"GIF89a", b"\x89PNG", b"\xff\xd8\xff"] {
            assert!(Picture::decode(file).is_err());
        }
    }
}
