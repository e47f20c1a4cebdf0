//! A deserializer for UBJSON (draft 12) with typed arrays.

use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::refused;

/// The deepest nesting.
const MAX_DEPTH: usize = 64;

/// The reason why a document cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Error(String);

impl de::Error for Error {
    fn custom<T: std::fmt::Display>(reason: T) -> Self {
        Self(reason.to_string())
    }
}

/// Reads a value.
///
/// # Errors
/// The contents are not UBJSON, or not of this type.
pub(super) fn from_slice<T: DeserializeOwned>(contents: &[u8]) -> Result<T, Error> {
    T::deserialize(&mut Reader { rest: contents, depth: 0, marker: None })
}

struct Reader<'a> {
    rest: &'a [u8],
    depth: usize,
    /// The type of the next value, in a container whose elements are all of one type.
    marker: Option<u8>,
}

/// The header of a container.
struct Container {
    marker: Option<u8>,
    count: Option<usize>,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (bytes, rest) =
            self.rest.split_first_chunk().ok_or_else(|| refused("the file ends in a value"))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// The type of the next value. Padding is skipped.
    fn next_marker(&mut self) -> Result<u8, Error> {
        if let Some(marker) = self.marker {
            return Ok(marker);
        }
        loop {
            match self.byte()? {
                b'N' => {}
                marker => return Ok(marker),
            }
        }
    }

    fn integer(&mut self, marker: u8) -> Result<i64, Error> {
        Ok(match marker {
            b'i' => i8::from_be_bytes(self.take()?).into(),
            b'U' => self.byte()?.into(),
            b'I' => i16::from_be_bytes(self.take()?).into(),
            b'l' => i32::from_be_bytes(self.take()?).into(),
            b'L' => i64::from_be_bytes(self.take()?),
            other => {
                return Err(refused(format_args!(
                    "'{}' is not the type of an integer",
                    other.escape_ascii()
                )));
            }
        })
    }

    fn length(&mut self) -> Result<usize, Error> {
        let marker = self.byte()?;
        let length = self.integer(marker)?;
        usize::try_from(length).map_err(|_| refused("a length is negative"))
    }

    fn text(&mut self) -> Result<String, Error> {
        let length = self.length()?;
        let (text, rest) =
            self.rest.split_at_checked(length).ok_or_else(|| refused("the file ends in a text"))?;
        self.rest = rest;
        String::from_utf8(text.to_vec()).map_err(|_| refused("a text is not UTF-8"))
    }

    fn open(&mut self) -> Result<Container, Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(refused(format_args!("values are nested more than {MAX_DEPTH} deep")));
        }
        let marker = (self.rest.first() == Some(&b'$')).then(|| self.take::<2>().map(|[_, marker]| marker));
        let marker = marker.transpose()?;
        let count = if self.rest.first() == Some(&b'#') {
            self.byte()?;
            Some(self.length()?)
        } else {
            None
        };
        if marker.is_some() && count.is_none() {
            return Err(refused("a container has a type but no length"));
        }
        // A few bytes would stand for any number of values.
        if let Some(empty @ (b'Z' | b'N' | b'T' | b'F')) = marker {
            return Err(refused(format_args!("a container has the type '{}'", char::from(empty))));
        }
        Ok(Container { marker, count })
    }

    /// Whether the container has another entry. Reads its end.
    fn has_next(&mut self, container: &mut Container, end: u8) -> Result<bool, Error> {
        let more = match &mut container.count {
            Some(0) => false,
            Some(count) => {
                *count -= 1;
                true
            }
            None if self.rest.first() == Some(&end) => {
                self.byte()?;
                false
            }
            None => true,
        };
        if !more {
            self.depth -= 1;
        }
        Ok(more)
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let marker = self.next_marker()?;
        self.marker = None;
        match marker {
            b'Z' => visitor.visit_unit(),
            b'T' => visitor.visit_bool(true),
            b'F' => visitor.visit_bool(false),
            b'd' => visitor.visit_f32(f32::from_be_bytes(self.take()?)),
            b'D' => visitor.visit_f64(f64::from_be_bytes(self.take()?)),
            b'C' => visitor.visit_char(char::from(self.byte()?)),
            b'S' | b'H' => visitor.visit_string(self.text()?),
            b'[' => {
                let container = self.open()?;
                visitor.visit_seq(Entries { reader: self, container, end: b']' })
            }
            b'{' => {
                let container = self.open()?;
                visitor.visit_map(Entries { reader: self, container, end: b'}' })
            }
            integer => visitor.visit_i64(self.integer(integer)?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Entries<'a, 'b> {
    reader: &'a mut Reader<'b>,
    container: Container,
    end: u8,
}

impl<'de> SeqAccess<'de> for Entries<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if !self.reader.has_next(&mut self.container, self.end)? {
            return Ok(None);
        }
        self.reader.marker = self.container.marker;
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if !self.reader.has_next(&mut self.container, self.end)? {
            return Ok(None);
        }
        // A key is a text without the mark of its type.
        let key = self.reader.text()?;
        seed.deserialize(de::value::StringDeserializer::<Error>::new(key)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        self.reader.marker = self.container.marker;
        seed.deserialize(&mut *self.reader)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(contents: &[u8]) -> Result<Value, Error> {
        from_slice(contents)
    }

    #[test]
    fn each_type_is_read() {
        for (contents, expected) in [
            (b"Z".as_slice(), json!(null)),
            (b"T", json!(true)),
            (b"NNF", json!(false)),
            (b"i\xff", json!(-1)),
            (b"U\xff", json!(255)),
            (b"I\x01\x00", json!(256)),
            (b"l\xff\xff\xff\xfe", json!(-2)),
            (b"L\x00\x00\x00\x01\x00\x00\x00\x00", json!(1_i64 << 32)),
            (b"d\x3f\x00\x00\x00", json!(0.5)),
            (b"D\x3f\xe0\x00\x00\x00\x00\x00\x00", json!(0.5)),
            (b"CA", json!("A")),
            (b"SU\x02ab", json!("ab")),
            (b"SL\x00\x00\x00\x00\x00\x00\x00\x02ab", json!("ab")),
            (b"[]", json!([])),
            (b"[i\x01SU\x01x]", json!([1, "x"])),
            (b"[#U\x02i\x01T", json!([1, true])),
            (b"[$U#U\x03\x01\x02\x03", json!([1, 2, 3])),
            (b"[$d#i\x01\x3f\x00\x00\x00", json!([0.5])),
            (b"{}", json!({})),
            (b"{U\x01a[i\x01]U\x01b{}}", json!({"a": [1], "b": {}})),
            (b"{#U\x01U\x01ai\x01", json!({"a": 1})),
            (b"{$i#U\x02U\x01a\x01U\x01b\x02", json!({"a": 1, "b": 2})),
        ] {
            assert_eq!(read(contents).unwrap(), expected, "{}", contents.escape_ascii());
        }
    }

    #[test]
    fn damaged_documents_are_refused() {
        let deep = [b"[".repeat(100), b"]".repeat(100)].concat();
        for (contents, expected) in [
            (b"".as_slice(), "ends in a value"),
            (b"d\x00", "ends in a value"),
            (b"SU\x09ab", "ends in a text"),
            (b"Si\xffab", "negative"),
            (b"SU\x01\xff", "UTF-8"),
            (b"[$U\x01", "no length"),
            (b"[i\x01", "ends in a value"),
            (b"?", "type of an integer"),
            (b"[$U#L\x7f\xff\xff\xff\xff\xff\xff\xff\x01", "ends in a value"),
            (b"[$T#L\x7f\xff\xff\xff\xff\xff\xff\xff", "the type 'T'"),
            (b"[$Z#U\x02", "the type 'Z'"),
            (b"{$F#U\x02U\x01aU\x01b", "the type 'F'"),
            (&deep, "nested"),
        ] {
            let error = read(contents).expect_err(expected).to_string();
            assert!(error.contains(expected), "{}: {error}", contents.escape_ascii());
        }
    }
}
