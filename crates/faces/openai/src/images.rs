//! Images in messages: which a model takes, and how they reach it.
//!
//! An image is text in base64, as in the input `image` of Triton's vLLM backend. The face checks that it is an image and decodes it no
//! further; where it belongs in the prompt is up to the chat template.

use std::io::{self, Read as _};
use std::ops::RangeInclusive;

use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;
use nereid_core::backend_api::{DataType, Tensor, push_bytes_element};
use nereid_core::{InputSignature, Model, Signature};

use crate::error::{Failure, Outcome};
use crate::tensors;

/// The input with the images of a request.
const INPUT: &str = "image";

/// The parameters of a configuration that limit images.
const MAX_IMAGES: &str = "max_images";
const MAX_BYTES: &str = "max_image_bytes";

/// The limits without them.
const DEFAULT_IMAGES: usize = 16;
const DEFAULT_BYTES: usize = 20 << 20;

/// The media types of images.
const MEDIA_TYPES: [&str; 5] = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/jpg"];

/// The images that a model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageContract {
    /// How many images a request with images has.
    counts: RangeInclusive<usize>,
    /// The largest image in bytes.
    max_bytes: usize,
}

impl ImageContract {
    /// The contract of a model; `None` if it takes no images.
    ///
    /// # Errors
    /// A parameter of the configuration is not a number.
    pub(crate) fn of(model: &Model) -> Result<Option<Self>, String> {
        let Some(input) = input(model.signature()) else { return Ok(None) };
        let limit = |name: &str, default: usize| match model.config().parameters.get(name) {
            None => Ok(default),
            Some(value) => {
                let number = value.string_value.trim().parse().ok().filter(|number| *number > 0);
                number.ok_or_else(|| {
                    format!("parameter '{name}' is '{}', but must be a number above 0", value.string_value)
                })
            }
        };
        let max = limit(MAX_IMAGES, DEFAULT_IMAGES)?;
        // Without a variable dimension, the shape is the number of images.
        let is_fixed = input.dims.iter().all(|dim| *dim >= 0);
        let fixed = input.dims.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product();
        let counts = if is_fixed { fixed..=fixed } else { 1..=max };
        Ok(Some(Self { counts, max_bytes: limit(MAX_BYTES, DEFAULT_BYTES)? }))
    }
}

fn input(signature: &Signature) -> Option<&InputSignature> {
    signature.input(INPUT).filter(|input| input.data_type == DataType::Bytes)
}

/// The images of a conversation, in order.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// Their texts in base64, as elements of a tensor.
    contents: Vec<u8>,
    count: usize,
}

impl Images {
    /// The tensor of a model that takes images. `None` without any.
    pub(crate) fn into_tensor(self, signature: &Signature) -> Option<Tensor> {
        let input = input(signature).filter(|_| self.count > 0)?;
        let shape = tensors::shape(signature, input, self.count);
        Some(Tensor::new(input.name.clone(), input.data_type, shape, self.contents))
    }
}

/// Collects the images of a conversation for a model.
#[derive(Debug)]
pub(crate) struct ImageReader<'a> {
    /// The model's name, for messages.
    pub model: &'a str,
    /// The contract of the model.
    pub contract: Option<&'a ImageContract>,
    /// Whether the chat template has a place for images.
    pub has_place: bool,
    /// The images so far.
    pub images: Images,
}

impl ImageReader<'_> {
    /// Adds the image at a URL in the part of a message at `place`, as in `messages[0].content[1]`.
    ///
    /// # Errors
    /// The model or its chat template takes no images, the URL has none, or the image exceeds a limit.
    pub(crate) fn add(&mut self, place: &str, url: &str) -> Outcome<()> {
        let Some(contract) = self.contract else {
            return Err(unsupported(
                place,
                &format!("model '{}' takes no images: it has no BYTES input '{INPUT}'", self.model),
            ));
        };
        if !self.has_place {
            return Err(unsupported(
                place,
                &format!("the chat template of model '{}' has no place for images", self.model),
            ));
        }
        if self.images.count == *contract.counts.end() {
            return Err(invalid(
                place,
                &format!("model '{}' takes at most {} images in a request", self.model, self.images.count),
            ));
        }
        let encoded = encoded(place, url)?;
        // Up to two bytes less than the length suggests.
        let is_small = encoded.len() / 4 * 3 <= contract.max_bytes.saturating_add(2);
        if !is_small || check(place, encoded)? > contract.max_bytes as u64 {
            let fault = format!(
                "the image is larger than {} bytes, which model '{}' takes at most",
                contract.max_bytes, self.model
            );
            return Err(invalid(place, &fault));
        }
        push_bytes_element(&mut self.images.contents, encoded.as_bytes())?;
        self.images.count += 1;
        Ok(())
    }

    /// The images. `field` holds the conversation.
    ///
    /// # Errors
    /// The model takes more images.
    pub(crate) fn finish(self, field: &'static str) -> Outcome<Images> {
        let count = self.images.count;
        match self.contract {
            Some(contract) if count > 0 && count < *contract.counts.start() => Err(Failure::invalid_field(
                field,
                format!(
                    "'{field}' has {count} images, but model '{}' takes {}",
                    self.model,
                    contract.counts.start()
                ),
            )),
            _ => Ok(self.images),
        }
    }
}

fn field(place: &str) -> String {
    place.split('[').next().unwrap_or_default().to_owned()
}

fn invalid(place: &str, fault: &str) -> Box<Failure> {
    Failure::invalid_field(field(place), format!("'{place}': {fault}"))
}

fn unsupported(place: &str, fault: &str) -> Box<Failure> {
    Failure::unsupported(field(place), format!("'{place}': {fault}"))
}

/// The text in base64 of a data URL.
fn encoded<'u>(place: &str, url: &'u str) -> Outcome<&'u str> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    if ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        let fault = "images at http and https addresses are not fetched; send the image itself as a data: URL in base64";
        return Err(unsupported(place, fault));
    }
    let Some((head, data)) = rest.split_once(',').filter(|_| scheme.eq_ignore_ascii_case("data")) else {
        return Err(invalid(place, "the URL of an image must be of the form data:image/png;base64,..."));
    };
    let (media_type, parameters) = head.split_once(';').unwrap_or((head, ""));
    if !MEDIA_TYPES.iter().any(|known| media_type.eq_ignore_ascii_case(known)) {
        let media_type: String = media_type.chars().take(40).collect();
        let fault = format!(
            "images of type '{media_type}' are not supported (available: {})",
            MEDIA_TYPES[..4].join(", ")
        );
        return Err(unsupported(place, &fault));
    }
    match parameters.rsplit(';').next() {
        Some(last) if last.eq_ignore_ascii_case("base64") => Ok(data),
        _ => Err(invalid(place, "the data: URL of an image must be in base64")),
    }
}

/// The size in bytes of an image in base64.
fn check(place: &str, encoded: &str) -> Outcome<u64> {
    let mut reader = DecoderReader::new(encoded.as_bytes(), &STANDARD);
    let mut head = Vec::with_capacity(16);
    let whole =
        reader.by_ref().take(16).read_to_end(&mut head).and_then(|_| io::copy(&mut reader, &mut io::sink()));
    let rest = whole.map_err(|error| invalid(place, &format!("the image is not valid base64: {error}")))?;
    let is_known = head.starts_with(b"\x89PNG\r\n\x1a\n")
        || head.starts_with(&[0xff, 0xd8, 0xff])
        || head.starts_with(b"GIF87a")
        || head.starts_with(b"GIF89a")
        || (head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP"));
    match is_known {
        true => Ok(head.len() as u64 + rest),
        false => Err(invalid(place, "the data is not a PNG, JPEG, WebP or GIF image")),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

    fn contract(counts: RangeInclusive<usize>, max_bytes: usize) -> ImageContract {
        ImageContract { counts, max_bytes }
    }

    fn reader(contract: &ImageContract) -> ImageReader<'_> {
        ImageReader { model: "m", contract: Some(contract), has_place: true, images: Images::default() }
    }

    fn url(media_type: &str, data: &[u8]) -> String {
        format!("data:{media_type};base64,{}", STANDARD.encode(data))
    }

    fn fault(outcome: Outcome<()>) -> String {
        let body = String::from_utf8(outcome.unwrap_err().body()).unwrap();
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["param"], "messages");
        body["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn images_of_the_usual_formats_are_taken_as_they_are() {
        let contract = contract(1..=9, 100);
        let mut reader = reader(&contract);
        let all = [
            url("image/png", PNG),
            url("IMAGE/JPEG", &[0xff, 0xd8, 0xff, 0xe0]),
            url("image/jpg", &[0xff, 0xd8, 0xff, 0xe0, 1]),
            url("image/gif", b"GIF89a.."),
            url("image/webp;x=y", b"RIFF....WEBPVP8 "),
            // A wrong name for a known format.
            url("image/png", b"GIF87a."),
        ];
        for url in &all {
            reader.add("messages[0].content[0]", url).unwrap();
        }
        let images = reader.finish("messages").unwrap();
        let mut expected = Vec::new();
        for url in &all {
            push_bytes_element(&mut expected, url.split_once(',').unwrap().1.as_bytes()).unwrap();
        }
        assert_eq!((images.count, images.contents), (6, expected));
    }

    #[test]
    fn other_images_are_refused_with_the_reason() {
        let contract = contract(1..=1, 32);
        let svg = url("image/svg+xml", b"<svg/>");
        for (given, expected) in [
            ("http://example.com/a.png", "not fetched; send the image itself"),
            ("HTTPS://example.com/a.png", "not fetched"),
            ("file:///etc/passwd", "must be of the form data:image/png;base64"),
            ("", "must be of the form"),
            ("data:image/png;base64", "must be of the form"),
            ("iVBORw0KGgo=", "must be of the form"),
            (&svg, "images of type 'image/svg+xml' are not supported (available: image/png, image/jpeg"),
            ("data:,x", "images of type ''"),
            (&format!("data:{},x", "é".repeat(1000)), &format!("type '{}'", "é".repeat(40))),
            ("data:image/png,%89PNG", "must be in base64"),
            ("data:image/png;base64;x,aaaa", "must be in base64"),
            ("data:image/png;base64,", "is not a PNG, JPEG, WebP or GIF"),
            ("data:image/png;base64,!!!!", "not valid base64: Invalid symbol 33, offset 0"),
            ("data:image/png;base64,iVBORw0KGgo", "not valid base64"),
            ("data:image/png;base64,iVBORw0KGgo=iVBO", "not valid base64"),
            ("data:image/png;base64,iVBORw0KGgo=\n", "not valid base64"),
            (&url("image/png", b"<svg/>"), "is not a PNG"),
            (&url("image/png", &[PNG, &[0; 21]].concat()), "larger than 32 bytes"),
            (&url("image/png", &[PNG, &[0; 3000]].concat()), "larger than 32 bytes"),
        ] {
            let message = fault(reader(&contract).add("messages[2].content[1]", given));
            assert!(message.starts_with("'messages[2].content[1]': "), "{message}");
            assert!(message.contains(expected), "{given}: {message}");
        }
    }

    #[test]
    fn limits_count_images_and_their_bytes() {
        let contract = contract(2..=2, PNG.len());
        let png = url("image/png", PNG);
        let mut one = reader(&contract);
        one.add("messages[0].content[0]", &png).unwrap();
        let error = one.finish("messages").unwrap_err();
        assert!(String::from_utf8(error.body()).unwrap().contains("has 1 images, but model 'm' takes 2"));
        let mut three = reader(&contract);
        three.add("messages[0].content[0]", &png).unwrap();
        three.add("messages[0].content[1]", &png).unwrap();
        assert!(fault(three.add("messages[0].content[2]", &png)).contains("at most 2 images in a request"));
        assert_eq!(reader(&contract).finish("messages").unwrap().count, 0);
    }

    #[test]
    fn models_and_templates_without_a_place_for_images_are_named() {
        let png = url("image/png", PNG);
        let contract = contract(1..=2, 100);
        let without = ImageReader { contract: None, ..reader(&contract) };
        let placeless = ImageReader { has_place: false, ..reader(&contract) };
        for (mut reader, expected) in [
            (without, "'messages[0].content[0]': model 'm' takes no images: it has no BYTES input 'image'"),
            (placeless, "'messages[0].content[0]': the chat template of model 'm' has no place for images"),
        ] {
            assert_eq!(fault(reader.add("messages[0].content[0]", &png)), expected);
        }
    }
}
