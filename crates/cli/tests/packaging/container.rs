//! The container recipe, and the manifest for Kubernetes.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use testbed::process::{run, tool};

use crate::pod::tree;
use crate::support::PROGRAM;

/// The manifest's documents.
fn manifest() -> Vec<Value> {
    let text = fs::read_to_string(tree("deploy/kubernetes.yaml")).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// The document of a kind.
fn document(kind: &str) -> Value {
    let mut documents = manifest().into_iter();
    let found = documents.find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

fn words(value: &Value) -> Vec<String> {
    let words = value.as_array().into_iter().flatten();
    words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

/// What the manifest has the program do, and what the ports are that its init container passes on.
pub(crate) fn pod_commands() -> (Vec<String>, Vec<String>) {
    let pod = &document("Deployment")["spec"]["template"]["spec"];
    let network = words(&pod["initContainers"][0]["command"]);
    assert_eq!(network[0], "pod-network");
    (words(&pod["containers"][0]["args"]), network[1..].to_vec())
}

/// The instructions of the recipe, each in one line.
fn instructions() -> Vec<(String, String)> {
    let text = fs::read_to_string(tree("deploy/Containerfile")).unwrap();
    let text = text.replace("\\\n", "");
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = lines.map(|line| line.split_once(' ').expect("an instruction"));
    split
        .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
        .collect()
}

#[test]
fn the_manifest_is_of_nodes_behind_one_service() {
    for document in manifest() {
        let kind = document["kind"].as_str().unwrap();
        let version = match kind {
            "Namespace" | "Service" => "v1",
            "Deployment" => "apps/v1",
            "PodDisruptionBudget" => "policy/v1",
            other => panic!("{other}"),
        };
        assert_eq!(document["apiVersion"], version, "{kind}");
        assert_eq!(document["metadata"]["name"], "splitway", "{kind}");
        let namespace = if kind == "Namespace" {
            Value::Null
        } else {
            json!("splitway")
        };
        assert_eq!(document["metadata"]["namespace"], namespace, "{kind}");
    }
    let deployment = &document("Deployment")["spec"];
    let labels = &deployment["template"]["metadata"]["labels"];
    assert!(deployment["replicas"].as_u64().unwrap() > 1);
    let pod = &deployment["template"]["spec"];
    // No two on one node, and no attempt to have two for an upgrade.
    let apart = &pod["affinity"]["podAntiAffinity"];
    let apart = &apart["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(apart["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(deployment["strategy"]["rollingUpdate"]["maxSurge"], 0);
    for selector in [
        &deployment["selector"]["matchLabels"],
        &apart["labelSelector"]["matchLabels"],
        &document("Service")["spec"]["selector"],
        &document("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ] {
        assert_eq!(selector, labels);
    }
    let container = &pod["containers"][0];
    let [port, admin] = [&container["ports"][0], &container["ports"][1]];
    assert_eq!(
        document("Service")["spec"]["ports"][0]["targetPort"],
        port["name"]
    );
    for (probe, how, asked) in [
        ("startupProbe", "tcpSocket", port),
        ("readinessProbe", "httpGet", admin),
        ("livenessProbe", "httpGet", admin),
    ] {
        assert_eq!(container[probe][how]["port"], asked["name"], "{probe}");
    }
    let (args, passed_on) = pod_commands();
    let listener = format!("--admin=0.0.0.0:{}", admin["containerPort"]);
    assert!(args.contains(&listener), "{listener}: {args:?}");
    assert_eq!(passed_on, [port["containerPort"].to_string()]);
    let volumes: Vec<&Value> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(volumes.contains(&&mount["name"]), "{mount}");
    }
    assert_eq!(
        container["securityContext"]["allowPrivilegeEscalation"],
        false
    );
    assert_eq!(pod["initContainers"][0]["image"], container["image"]);
    let version = format!("splitway:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], version);
}

/// How long downloads may take to end with what the manifest says, in seconds.
fn drain_timeout_s() -> u64 {
    let (args, _) = pod_commands();
    let text = run(Command::new(PROGRAM).args(args).arg("--print-config")).unwrap();
    let config: toml::Table = text.parse().unwrap();
    let time = config["operation"]["drain_timeout"].as_str().unwrap();
    let (number, unit) = time.split_at(time.len() - 1);
    let unit_s = match unit {
        "s" => 1,
        "m" => 60,
        other => panic!("{other}"),
    };
    number.parse::<u64>().unwrap() * unit_s
}

#[test]
fn downloads_may_end_before_a_container_or_a_pod_is_killed() {
    let (_, signal) = instructions()
        .into_iter()
        .find(|(name, _)| name == "STOPSIGNAL")
        .expect("a signal");
    assert_eq!(signal, "SIGQUIT");
    let least_s = drain_timeout_s() + 5;
    let pod = &document("Deployment")["spec"]["template"]["spec"];
    let grace_s = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    let goes_on = &pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"];
    assert!(
        grace_s >= least_s + goes_on.as_u64().unwrap(),
        "{grace_s} s"
    );
    let recipe = fs::read_to_string(tree("deploy/Containerfile")).unwrap();
    let (_, after) = recipe.split_once("--stop-timeout ").unwrap();
    let given_s: u64 = after.split(' ').next().unwrap().parse().unwrap();
    assert!(given_s >= least_s, "{given_s} s");
}

#[test]
fn the_recipe_copies_what_is_there_and_runs_what_a_shell_understands() {
    let instructions = instructions();
    let stages = instructions
        .iter()
        .filter(|(name, _)| name == "FROM")
        .count();
    assert_eq!(stages, 2);
    for (name, rest) in &instructions {
        match name.as_str() {
            "RUN" => {
                run(tool("sh -n -c").arg(rest)).unwrap();
            }
            "COPY" => {
                let mut paths = rest.split(' ').filter(|word| !word.starts_with("--"));
                let source = paths.next().unwrap();
                assert!(
                    rest.contains("--from=build") || tree(source).exists(),
                    "{rest}"
                );
            }
            "ENTRYPOINT" | "CMD" => {
                serde_json::from_str::<Vec<String>>(rest).unwrap();
            }
            "FROM" | "WORKDIR" | "STOPSIGNAL" => {}
            other => panic!("{other}"),
        }
    }
    let of = |name: &str| {
        let found = instructions
            .iter()
            .find(|(found, _)| found == name)
            .unwrap();
        serde_json::from_str::<Vec<String>>(&found.1).unwrap()
    };
    assert_eq!(of("ENTRYPOINT"), ["/usr/bin/splitway"]);
    // But for what is only good for Kubernetes, both say the same.
    let (args, _) = pod_commands();
    let line = of("CMD")
        .join(" ")
        .replace("--dev ", "--dev=")
        .replace("--addr ", "--addr=");
    assert!(
        args.join(" ")
            .starts_with(&line.replace("--gateway ", "--gateway=")),
        "{line}"
    );
    let made = run(tool("make --dry-run deb").current_dir(tree(""))).unwrap();
    assert!(
        made.contains(" deb ") && made.contains("generate man"),
        "{made}"
    );
}
