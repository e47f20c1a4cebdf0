//! Messages as they are sent and received, and what a process may not send.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;
use crate::call::{self, Outcome};
use crate::side::Reply;
use crate::tensor::{Contents, Correlation, DeviceContents, Failure, Request, Value};

fn pair() -> (Channel, Channel) {
    let (one, other) = Channel::pair().unwrap();
    (one, Channel::new(other))
}

/// A tensor of these bytes, sent and received.
fn put(message: &mut Message<'_>, name: &str, contents: &[u8]) {
    let shape = [contents.len() as i64];
    message.tensor(name, 2, &shape, contents.len(), |target| target.copy_from_slice(contents)).unwrap();
}

#[test]
fn small_contents_travel_in_the_message_and_large_ones_beside_it() {
    let (mut one, mut other) = pair();
    for (length, beside) in
        [(0, false), (1, false), (MAX_INLINE, false), (MAX_INLINE + 1, true), (65 << 20, true), (5, false)]
    {
        let contents: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let mut message = one.sender.message(7);
        put(&mut message, "X", &contents);
        message.send().unwrap();
        let incoming = other.receiver.receive().unwrap().unwrap();
        let mut reader = incoming.reader();
        let tensor = reader.tensor().unwrap();
        reader.end().unwrap();
        assert_eq!((incoming.kind(), tensor.name, tensor.data_type), (7, "X", 2));
        assert_eq!(tensor.shape, [length as i64]);
        assert!(tensor.contents.as_host().unwrap() == contents, "{length} bytes");
        assert_eq!(matches!(tensor.contents, Contents::Region(_)), beside, "{length} bytes");
    }
    assert_eq!(one.sender.sent(), 6);
}

#[test]
fn segment_that_cannot_be_mapped_fails_its_tensors_alone() {
    let (mut one, mut other) = pair();
    let file = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 1 << 20).unwrap();
    // The last of these refuses mappings to write.
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
    let mut segment = Writer::default();
    segment.count(0);
    segment.u64(1 << 20);
    send(&one.sender, SEGMENT, &segment.0, Some(file.as_fd())).unwrap();
    let mut message = one.sender.message(7);
    for offset in [64, 128] {
        message.text("X");
        message.u8(2);
        message.count(0);
        message.u8(1);
        message.count(0);
        message.u64(offset);
        message.u64(1);
    }
    put(&mut message, "Y", b"in the message");
    message.send().unwrap();
    let incoming = other.receiver.receive().unwrap().unwrap();
    let mut reader = incoming.reader();
    for _ in 0..2 {
        let contents = reader.tensor().unwrap().contents;
        assert!(
            matches!(&contents, Contents::Unmapped(error) if error.kind() == ErrorKind::PermissionDenied),
            "{contents:?}"
        );
    }
    assert_eq!(reader.tensor().unwrap().contents.as_host().unwrap(), b"in the message");
    one.sender.message(8).send().unwrap();
    assert_eq!(other.receiver.receive().unwrap().unwrap().kind(), 8);
}

#[test]
fn a_region_is_used_again_once_it_was_dropped_and_not_before() {
    let (mut one, mut other) = pair();
    let mut send = |value: u8| {
        let mut message = one.sender.message(1);
        put(&mut message, "X", &vec![value; 100_000]);
        message.send().unwrap();
        let incoming = other.receiver.receive().unwrap().unwrap();
        let Contents::Region(region) = incoming.reader().tensor().unwrap().contents else { panic!("inline") };
        region
    };
    let first = send(1);
    let second = send(2);
    assert_ne!(first.as_ptr(), second.as_ptr());
    let place = first.as_ptr();
    drop(first);
    assert_eq!(send(3).as_ptr(), place);
    assert!(second.as_ref().iter().all(|byte| *byte == 2));
}

#[test]
fn a_message_that_is_dropped_or_truncated_keeps_no_memory() {
    let (mut one, mut other) = pair();
    let mut message = one.sender.message(1);
    put(&mut message, "X", &[1; 50_000]);
    drop(message);
    let mut message = one.sender.message(1);
    let mark = message.mark();
    put(&mut message, "X", &[2; 50_000]);
    message.truncate(mark);
    put(&mut message, "Y", &[3; 50_000]);
    message.send().unwrap();
    let incoming = other.receiver.receive().unwrap().unwrap();
    let mut reader = incoming.reader();
    let tensor = reader.tensor().unwrap();
    assert_eq!((tensor.name, reader.end()), ("Y", Ok(())));
    assert_eq!(tensor.contents.as_host().unwrap(), [3; 50_000]);
    drop(tensor);
    assert_eq!(one.sender.pool().segments().len(), 1);
}

#[test]
fn requests_and_replies_arrive_as_they_were_sent() {
    let (mut one, mut other) = pair();
    let sent = Request {
        handle: u64::MAX,
        id: "ä",
        correlation: Correlation::Text("seq"),
        flags: 3,
        priority: 1,
        timeout: 2,
        flow: u64::MAX - 1,
        trace: Some(""),
        outputs: vec!["A", ""],
        parameters: vec![
            ("i", Value::Int(-1)),
            ("b", Value::Bool(true)),
            ("d", Value::Double(0.5)),
            ("t", Value::Text("x")),
        ],
    };
    let mut message = one.sender.message(call::EXECUTE);
    message.request(&sent);
    message.count(2);
    put(&mut message, "A", b"1");
    put(&mut message, "B", b"");
    message.later_outcome();
    message.reschedule_outcome();
    message.failure_outcome(Failure { code: 7, message: "gone" });
    message.response_outcome([("n", Value::Int(5))].into_iter());
    message.count(0);
    message.number_reply(1.5);
    message.pairs([("a", "b")].into_iter());
    message.send().unwrap();
    let incoming = other.receiver.receive().unwrap().unwrap();
    let mut reader = incoming.reader();
    let (request, inputs) = reader.request().unwrap();
    assert_eq!((request, inputs.len()), (sent, 2));
    assert!(matches!(reader.outcome(), Ok(Outcome::Later)));
    assert!(matches!(reader.outcome(), Ok(Outcome::Reschedule)));
    assert!(matches!(reader.outcome(), Ok(Outcome::Failure(Failure { code: 7, message: "gone" }))));
    let Ok(Outcome::Response(response)) = reader.outcome() else { panic!("no response") };
    assert_eq!((response.parameters, response.outputs.len()), (vec![("n", Value::Int(5))], 0));
    assert!(matches!(reader.reply(), Ok(Reply::Number(1.5))));
    assert_eq!(reader.pairs(), Ok(vec![("a", "b")]));
    assert_eq!(reader.end(), Ok(()));
}

#[test]
fn frames_are_taken_apart_however_they_arrive() {
    let (one, other) = UnixStream::pair().unwrap();
    let mut other = Channel::new(other.into());
    let payloads: Vec<Vec<u8>> =
        [0, 1, 7, 100, 70_000, 3].into_iter().map(|length| vec![length as u8; length]).collect();
    let mut bytes = Vec::new();
    for (kind, payload) in payloads.iter().enumerate() {
        bytes.extend(crate::frame::header(kind as u16 + 1, payload.len()).unwrap());
        bytes.extend(payload);
    }
    let writing = thread::spawn(move || {
        let mut one = one;
        let mut size = 1;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(size.min(rest.len()));
            one.write_all(now).unwrap();
            (rest, size) = (later, size * 3 % 1009);
        }
    });
    for (kind, payload) in payloads.iter().enumerate() {
        let incoming = other.receiver.receive().unwrap().unwrap();
        assert_eq!((incoming.kind() as usize, &incoming.frame.payload), (kind + 1, payload));
    }
    writing.join().unwrap();
    assert!(other.receiver.receive().unwrap().is_none());
}

#[test]
fn without_waiting_there_is_a_message_or_not_yet_or_the_end() {
    let (mut one, mut other) = pair();
    let kind = |outcome: io::Result<Option<Incoming>>| match outcome {
        Ok(Some(incoming)) => Ok(Some(incoming.kind())),
        Ok(None) => Ok(None),
        Err(error) => Err(error.kind()),
    };
    assert_eq!(kind(other.receiver.try_receive()), Err(ErrorKind::WouldBlock));
    one.sender.message(3).send().unwrap();
    one.sender.message(4).send().unwrap();
    assert_eq!(kind(other.receiver.try_receive()), Ok(Some(3)));
    assert_eq!(kind(other.receiver.try_receive()), Ok(Some(4)));
    assert_eq!(kind(other.receiver.try_receive()), Err(ErrorKind::WouldBlock));
    one.closer().close();
    assert_eq!(kind(other.receiver.try_receive()), Ok(None));
    assert!(other.sender.message(1).send().is_err());
}

#[test]
fn a_sender_with_a_backlog_waits_for_nobody_and_loses_nothing() {
    let (mut one, mut other) = pair();
    one.sender.keep_backlog();
    for number in 0..2000_usize {
        let mut message = one.sender.message(5);
        // A large tensor's segment is announced while there is a backlog already.
        put(&mut message, "X", &vec![number as u8; if number == 1500 { 100_000 } else { 1 + number % 3000 }]);
        message.send().unwrap();
    }
    assert!(one.sender.backlog() > 1 << 20);
    for number in 0..2000_usize {
        one.sender.flush().unwrap();
        let incoming = other.receiver.receive().unwrap().unwrap();
        let tensor = incoming.reader().tensor().unwrap();
        assert!(tensor.contents.as_host().unwrap().iter().all(|byte| *byte == number as u8), "{number}");
    }
    assert_eq!(one.sender.backlog(), 0);
    drop(other);
    one.sender.message(5).send().unwrap_err();
}

#[test]
fn malformed_message_is_refused() {
    for (what, bytes) in [
        ("garbage", &b"GET / HTTP/1.1\r\n\r\n"[..]),
        ("a frame that is too long", &[1, 0, 0, 64, 1, 0, 0, 0]),
        ("a header with bytes that are not 0", &[1, 0, 0, 0, 1, 0, 0, 1, 5]),
        ("an end within a header", &[1, 0, 0]),
        ("an end within a payload", &[5, 0, 0, 0, 1, 0, 0, 0, 1, 2]),
        ("a segment without its file", &[12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
        ("a segment without a length", &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(bytes).unwrap();
        drop(one);
        assert!(Channel::new(other.into()).receiver.receive().is_err(), "{what}");
    }
}

#[test]
fn a_file_that_could_be_cut_short_is_not_mapped() {
    let sealed = crate::memory::Segment::create(1 << 20).unwrap().file;
    let unsealed = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, 1 << 20).unwrap();
    let ordinary = std::fs::File::open("/proc/self/exe").unwrap();
    for (file, number, length, fits) in [
        (sealed.as_fd(), 0, 1 << 20, true),
        (sealed.as_fd(), 0, 2 << 20, false),
        (sealed.as_fd(), 1, 1 << 20, false),
        (sealed.as_fd(), 0, 0, false),
        (unsealed.as_fd(), 0, 1 << 20, false),
        (ordinary.as_fd(), 0, ordinary.metadata().unwrap().len(), false),
    ] {
        let (mut one, mut other) = pair();
        let mut message = one.sender.message(SEGMENT);
        message.u32(number);
        message.u64(length);
        message.send_with(Some(file)).unwrap();
        one.sender.message(9).send().unwrap();
        assert_eq!(other.receiver.receive().is_ok(), fits, "{number} {length}");
    }
}

/// Where a tensor's contents are, as a process may claim.
fn claim(segment: u32, offset: u64, length: u64) -> io::Result<usize> {
    let (mut one, mut other) = pair();
    // Creates segment 0.
    let mut message = one.sender.message(1);
    put(&mut message, "X", &[1; 10_000]);
    message.send().unwrap();
    other.receiver.receive().unwrap();
    let mut message = one.sender.message(1);
    message.text("X");
    message.u8(2);
    message.count(0);
    message.u8(1);
    message.u32(segment);
    message.u64(offset);
    message.u64(length);
    message.send().unwrap();
    let incoming = other.receiver.receive().unwrap().unwrap();
    let tensor = incoming.reader().tensor()?;
    Ok(tensor.contents.as_host().unwrap().len())
}

#[test]
fn a_region_outside_of_its_segment_is_refused() {
    let end = 64 << 20;
    assert_eq!(claim(0, 64, end - 64).unwrap(), (end - 64) as usize);
    assert_eq!(claim(0, end, 0).unwrap(), 0);
    for (segment, offset, length) in [
        (1, 64, 1),
        (0, 0, 1),
        (0, 65, 1),
        (0, 64, end - 63),
        (0, end + 64, 0),
        (0, 64, u64::MAX),
        (0, u64::MAX - 63, 64),
        (0, u64::MAX, 1),
    ] {
        assert!(claim(segment, offset, length).is_err(), "{segment} {offset} {length}");
    }
}

proptest! {
    /// A tensor in memory of a device arrives as it was sent, and one that is cut short is refused.
    #[test]
    fn device_tensors_are_read_as_written(
        device in any::<u32>(), (offset, length) in any::<(u64, u64)>(), handle in prop::collection::vec(any::<u8>(), 64),
        shape in prop::collection::vec(any::<i64>(), 0..4), cut in any::<usize>(),
    ) {
        let contents = DeviceContents { device, handle: handle.try_into().unwrap(), offset, length };
        let (mut one, mut other) = pair();
        let mut message = one.sender.message(1);
        message.device_tensor("X", 11, &shape, &contents);
        let written = message.0.clone();
        message.send().unwrap();
        let incoming = other.receiver.receive().unwrap().unwrap();
        let mut reader = incoming.reader();
        let tensor = reader.tensor().unwrap();
        reader.end().unwrap();
        prop_assert_eq!((tensor.name, tensor.data_type, &tensor.shape), ("X", 11, &shape));
        prop_assert!(tensor.contents.as_host().is_none());
        let Contents::Device(arrived) = tensor.contents else { panic!("not on a device") };
        prop_assert_eq!(arrived, contents);
        prop_assert!(Reader::new(&written[..cut % written.len()]).tensor().is_err());
    }

    /// Whatever a process sends, reading it ends, and takes no more memory than the message has.
    #[test]
    fn random_payloads_are_read_or_refused(payload in prop::collection::vec(any::<u8>(), 0..200), zeros in 0_usize..40) {
        let payload = [payload, vec![0; zeros]].concat();
        let _ = Reader::new(&payload).request();
        let _ = Reader::new(&payload).response();
        let _ = Reader::new(&payload).outcome();
        let _ = Reader::new(&payload).reply();
        let _ = Reader::new(&payload).pairs();
        let _ = Reader::new(&payload).optional_text();
    }

    /// Each value that is written is read again, wherever the payload is cut.
    #[test]
    fn values_are_read_as_written(
        texts in prop::collection::vec(any::<String>(), 0..5), number in any::<u64>(), float in any::<f64>(), cut in any::<usize>(),
    ) {
        let mut writer = Writer::default();
        let place = writer.reserve_count();
        texts.iter().for_each(|text| writer.text(text));
        writer.fill_count(place, texts.len());
        writer.u64(number);
        writer.f64(float);
        let read = |payload: &[u8]| -> Result<_, Malformed> {
            let mut reader = Reader::new(payload);
            let texts = (0..reader.count(4)?).map(|_| reader.text().map(str::to_owned)).collect::<Result<Vec<_>, _>>()?;
            let values = (texts, reader.u64()?, reader.f64()?.to_bits());
            reader.end()?;
            Ok(values)
        };
        prop_assert_eq!(read(&writer.0), Ok((texts, number, float.to_bits())));
        prop_assert!(read(&writer.0[..cut % writer.0.len()]).is_err());
    }
}
