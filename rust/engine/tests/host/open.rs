//! Opening: split models, and paths that lead to no model.
use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

use onegraph::error::Kind;
use onegraph::gguf::Value;
use onegraph::weights::Model;

use crate::fixture::{shard_name, split, tiny, Folder};
use crate::{message, says};

#[test]
fn a_split_model_is_the_whole_model() {
    let folder = Folder::new();
    let whole = Model::open(folder.write("whole.gguf", &tiny("qwen3").bytes())).unwrap();
    for count in [1, 2, 3, 7] {
        let folder = Folder::new();
        let first = folder.write_split(&split(tiny("qwen3"), count));
        let model = Model::open(&first).unwrap();
        assert_eq!(model.path(), first);
        assert_eq!(model.files().count(), count);
        assert_eq!(model.config().unwrap(), whole.config().unwrap());
        assert_eq!(model.tensors().count(), whole.tensors().count());
        for (a, b) in model.tensors().zip(whole.tensors()) {
            assert_eq!(a.name, b.name);
            assert_eq!(model.bytes(&a.name), whole.bytes(&a.name));
        }
        model.check_unchanged().unwrap();
    }
}

#[test]
fn another_shard_than_the_first_names_the_first() {
    let folder = Folder::new();
    let first = folder.write_split(&split(tiny("llama"), 3));
    let second = folder.0.join(shard_name(2, 3));
    let text = message(Model::open(second), Kind::Io);
    says(&text, &["shard 2 of 3", "open ", first.to_str().unwrap()]);
}

#[test]
fn a_missing_shard_is_named() {
    let folder = Folder::new();
    let first = folder.write_split(&split(tiny("llama"), 3));
    let third = folder.0.join(shard_name(3, 3));
    std::fs::remove_file(&third).unwrap();
    let text = message(Model::open(first), Kind::Io);
    says(&text, &[third.to_str().unwrap(), "shard 3 of 3", "next to"]);
}

#[test]
fn a_renamed_first_shard_says_how_to_name_it() {
    let folder = Folder::new();
    let first = folder.write_split(&split(tiny("llama"), 2));
    let renamed = folder.0.join("model.gguf");
    std::fs::rename(first, &renamed).unwrap();
    let text = message(Model::open(&renamed), Kind::Io);
    says(&text, &["first of 2 shards", "NAME-00001-of-00002.gguf"]);

    let wrong = folder.0.join(shard_name(1, 4));
    std::fs::rename(renamed, &wrong).unwrap();
    let text = message(Model::open(wrong), Kind::Io);
    says(&text, &["first of 2 shards", "NAME-00001-of-00002.gguf"]);
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let open = |change: &dyn Fn(&mut Vec<crate::fixture::Writer>)| {
        let folder = Folder::new();
        let mut shards = split(tiny("llama"), 3);
        change(&mut shards);
        message(Model::open(folder.write_split(&shards)), Kind::Model)
    };
    let second = shard_name(2, 3);

    let text = open(&|s| s.swap(1, 2));
    says(&text, &[&second, "shard 3 of 3", "shard 2 of 3"]);

    let text = open(&|s| {
        s[1].set("split.count", Value::U16(4));
    });
    says(&text, &[&second, "shard 2 of 4", "shard 2 of 3"]);

    let text = open(&|s| {
        s[1].remove("split.count").remove("split.no");
    });
    says(&text, &[&second, "missing", "shard 2 of 3"]);

    let n = tiny("llama").tensors.len();
    let text = open(&|s| {
        s[2].tensors.pop();
    });
    says(
        &text,
        &["split.tensors.count", &n.to_string(), &(n - 1).to_string()],
    );

    let text = open(&|s| {
        s[2].tensor("token_embd.weight", &[8, 6], 1);
    });
    says(
        &text,
        &["token_embd.weight", &shard_name(1, 3), &shard_name(3, 3)],
    );
}

#[test]
fn absurd_split_numbers_are_refused() {
    let open = |key: &str, value: Value| {
        let folder = Folder::new();
        let mut shards = split(tiny("llama"), 2);
        shards[0].set(key, value);
        message(Model::open(folder.write_split(&shards)), Kind::Model)
    };
    let text = open("split.count", Value::U16(65_535));
    says(&text, &["split.count", "65535", "512"]);
    let text = open("split.count", Value::U64(u64::MAX));
    says(&text, &["18446744073709551615", "512"]);
    let text = open("split.no", Value::U16(9));
    says(&text, &["9 of 2", "below"]);
    let text = open("split.no", Value::I32(-1));
    says(&text, &["split.no", "-1", "non-negative"]);
    let text = open("split.count", Value::String("two".into()));
    says(&text, &["split.count", "two", "integer"]);
    let text = open("split.tensors.count", Value::F32(2.0));
    says(&text, &["split.tensors.count", "2.0", "integer"]);
}

#[test]
fn a_damaged_shard_is_named() {
    let folder = Folder::new();
    let first = folder.write_split(&split(tiny("llama"), 2));
    let second = folder.write(&shard_name(2, 2), b"GGUF");
    let text = message(Model::open(first), Kind::Model);
    says(&text, &[second.file_name().unwrap().to_str().unwrap()]);
}

#[test]
fn a_path_that_is_no_file_says_what_it_is() {
    let folder = Folder::new();
    let missing = folder.0.join("missing.gguf");
    let text = message(Model::open(&missing), Kind::Io);
    says(&text, &[missing.to_str().unwrap(), "check the path"]);

    let text = message(Model::open(&folder.0), Kind::Io);
    says(&text, &["directory", "name the .gguf file inside"]);

    let inside_a_file = folder.write("file", b"GGUF").join("model.gguf");
    let text = message(Model::open(inside_a_file), Kind::Io);
    says(&text, &["model.gguf"]);

    let text = message(Model::open(folder.write("empty.gguf", b"")), Kind::Io);
    says(&text, &["empty (0 bytes)", "fetch it again"]);
}

#[cfg(unix)]
#[test]
fn pipes_devices_loops_and_locked_files_are_refused_at_once() {
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::os::unix::net::UnixListener;

    let folder = Folder::new();
    let pipe = folder.0.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let socket = folder.0.join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for path in [&pipe, &socket, std::path::Path::new("/dev/zero")] {
        let text = message(Model::open(path), Kind::Io);
        says(
            &text,
            &["pipe, socket or device", "save the model to a file"],
        );
    }

    let (a, b) = (folder.0.join("a"), folder.0.join("b"));
    symlink(&a, &b).unwrap();
    symlink(&b, &a).unwrap();
    let text = message(Model::open(&a), Kind::Io);
    says(&text, &["cannot open", "what it leads to"]);

    let locked = folder.write("locked.gguf", &tiny("llama").bytes());
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o0)).unwrap();
    // The superuser reads it all the same.
    if File::open(&locked).is_err() {
        let text = message(Model::open(&locked), Kind::Io);
        says(&text, &["make it readable"]);
    }

    let link = folder.0.join("link.gguf");
    symlink(folder.write("real.gguf", &tiny("llama").bytes()), &link).unwrap();
    Model::open(link).unwrap();
}

#[test]
fn files_of_other_formats_are_told_apart() {
    let cases: [(&[u8], &str); 8] = [
        (b"hello, this is a text file", "check the path"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "git lfs pull",
        ),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"tjgg\x03\0\0\0", "older than GGUF"),
        (b"PK\x03\x04\x14\0", "PyTorch"),
        (b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", "safetensors"),
        (b"GGU", "length is 3 bytes"),
        (b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0", "big-endian"),
    ];
    let folder = Folder::new();
    for (bytes, remedy) in cases {
        let text = message(Model::open(folder.write("x.gguf", bytes)), Kind::Model);
        says(&text, &["x.gguf", remedy]);
    }
}

#[test]
fn a_file_that_changed_after_opening_is_noticed() {
    let folder = Folder::new();
    let bytes = tiny("llama").bytes();
    let n = bytes.len();

    let path = folder.write("grows.gguf", &bytes);
    let model = Model::open(&path).unwrap();
    let file = File::options().append(true).open(&path).unwrap();
    file.set_len(n as u64 + 4096).unwrap();
    let text = message(model.check_unchanged(), Kind::Io);
    let (before, after) = (n.to_string(), (n + 4096).to_string());
    says(&text, &["grows.gguf", &before, &after, "open it again"]);

    let path = folder.write("shrinks.gguf", &bytes);
    let model = Model::open(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(100).unwrap();
    let text = message(model.check_unchanged(), Kind::Io);
    says(
        &text,
        &["shrinks.gguf", &before, "to 100 bytes", "open it again"],
    );

    let path = folder.write("written.gguf", &bytes);
    let model = Model::open(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let later = SystemTime::now() + Duration::from_secs(5);
    file.set_times(FileTimes::new().set_modified(later))
        .unwrap();
    let text = message(model.check_unchanged(), Kind::Io);
    says(&text, &["written.gguf", "written to", "open it again"]);
}

#[test]
fn a_shard_that_changed_after_opening_is_named() {
    let folder = Folder::new();
    let model = Model::open(folder.write_split(&split(tiny("llama"), 3))).unwrap();
    let path = folder.0.join(shard_name(2, 3));
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(7).unwrap();
    let text = message(model.check_unchanged(), Kind::Io);
    says(&text, &[&shard_name(2, 3), "to 7 bytes"]);
}

#[test]
fn a_path_given_to_another_file_leaves_the_open_one_valid() {
    let folder = Folder::new();
    let path = folder.write("model.gguf", &tiny("llama").bytes());
    let model = Model::open(&path).unwrap();
    let other = folder.write("other.gguf", b"something else");
    std::fs::rename(other, &path).unwrap();
    model.check_unchanged().unwrap();
    assert_eq!(model.bytes("output_norm.weight").unwrap().len(), 32);
}
