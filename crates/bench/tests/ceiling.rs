//! The ceiling in a short run: the stub of the NIC stack and the clients check all that the host
//! process issues, and end the run at the first SEND, segment or head that is wrong.

use std::process::Command;

#[test]
fn the_host_answers_all_clients_of_a_short_run() {
    let output = tempfile::tempdir().unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_splitway-bench"))
        .args(["ceiling", "--quick", "--connections", "16,1600"])
        .arg("--output")
        .arg(output.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        ran.status.success(),
        "{}\n{}",
        text(&ran.stdout),
        text(&ran.stderr)
    );
    let results = std::fs::read(output.path().join("ceiling.json")).unwrap();
    let results: serde_json::Value = serde_json::from_slice(&results).unwrap();
    println!("{results:#}");
    assert!(results.to_string().contains("1600"), "{results}");
}
