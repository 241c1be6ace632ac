//! HTTPS for a browser, and for a tool that looks for weaknesses.

use std::fs;

use testbed::namespace::isolated_long;
use testbed::process::tool;

use crate::browser::Page;
use crate::deaths::lose_packets;
use crate::https::{Certificate, HTTPS, serve_tls};

#[test]
#[ignore = "needs a browser, which takes long to install"]
fn chromium_downloads_with_both_versions_and_over_a_lossy_link() {
    isolated_long(|site| {
        let file = site.file("file", 20_000_003).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let with_key_updates = ["--tls-key-records", "200"];
        for is_lossy in [false, true] {
            if is_lossy {
                lose_packets();
            }
            for (address, options, server) in [
                ("10.77.0.2", "", &with_key_updates[..]),
                ("[fd77::2]", "", &with_key_updates),
                ("10.77.0.2", "--ssl-version-max=tls1.2", &[]),
            ] {
                let _splitway = serve_tls(&site, &[&certificate], server);
                println!("{address} {options}, lossy: {is_lossy}");
                let mut page = Page::open(&site, &certificate, options);
                let origin = format!("https://{address}");
                page.downloads(&site, ("h2", &origin), &[&file]);
            }
        }
    });
}

#[test]
#[ignore = "needs sslyze, which takes long to install"]
fn sslyze_finds_no_weakness() {
    isolated_long(|site| {
        site.file("file", 1000).unwrap();
        let [ec, rsa] =
            ["ec", "rsa"].map(|key| Certificate::new(site.outside(), key, key, &["localhost"]));
        let _splitway = serve_tls(&site, &[&ec, &rsa], &[]);
        let sslyze = |options: &str| {
            let line = format!("sslyze {} --mozilla_config {options}", HTTPS[0]);
            let output = tool(&line).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let said = sslyze("intermediate");
        println!("{said}");
        // It does not comply with Mozilla's recommendation in one thing: no authority has signed
        // the certificate.
        let (_, compliance) = said.split_once("COMPLIANCE").expect("a result");
        let complaints: Vec<&str> = compliance
            .lines()
            .filter_map(|line| line.trim().strip_prefix("* ")?.split(':').next())
            .collect();
        assert_eq!(complaints, ["certificate_path_validation"]);

        let report = site.outside().join("report.json");
        println!(
            "{}",
            sslyze(&format!(
                "disable --sslv2 --sslv3 --tlsv1 --tlsv1_1 --tlsv1_2 --tlsv1_3 --heartbleed \
                 --openssl_ccs --reneg --compression --fallback --early_data --ems --robot \
                 --json_out {}",
                report.display()
            ))
        );
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let results = &report["server_scan_results"][0]["scan_result"];
        let result = |name: &str| {
            let result = &results[name]["result"];
            assert!(result.is_object(), "{name}: {}", results[name]);
            result
        };
        for version in ["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"] {
            let accepted = &result(&format!("{version}_cipher_suites"))["accepted_cipher_suites"];
            assert_eq!(accepted.as_array().unwrap().len(), 0, "{version}");
        }
        for (version, count) in [("tls_1_2", 6), ("tls_1_3", 3)] {
            let accepted = &result(&format!("{version}_cipher_suites"))["accepted_cipher_suites"];
            assert_eq!(
                accepted.as_array().unwrap().len(),
                count,
                "{version}: {accepted}"
            );
        }
        for (scan, field, good) in [
            ("heartbleed", "is_vulnerable_to_heartbleed", false),
            (
                "openssl_ccs_injection",
                "is_vulnerable_to_ccs_injection",
                false,
            ),
            (
                "session_renegotiation",
                "is_vulnerable_to_client_renegotiation_dos",
                false,
            ),
            (
                "session_renegotiation",
                "supports_secure_renegotiation",
                true,
            ),
            ("tls_compression", "supports_compression", false),
            ("tls_fallback_scsv", "supports_fallback_scsv", true),
            ("tls_1_3_early_data", "supports_early_data", false),
            ("tls_extended_master_secret", "supports_ems_extension", true),
        ] {
            assert_eq!(result(scan)[field], good, "{scan}: {field}");
        }
        let robot = &result("robot")["robot_result"];
        assert_eq!(robot, "NOT_VULNERABLE_RSA_NOT_SUPPORTED");
    });
}
