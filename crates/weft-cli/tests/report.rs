//! Measurements as HTML pages, and the comparison of two of them.

mod support;

use serde_json::{json, Value};
use std::path::Path;
use support::{printed, weft, Folder};

/// A measurement whose times are the usual ones times `times`.
fn measured(place: &str, times: f64) -> String {
    let others = match place {
        "local" => ["ring", "kpipe-spin", "ucx-uct-am"],
        _ => ["udp-spin", "tcp-spin", "ucx-tcp"],
    };
    let mut rows: Vec<Value> = Vec::new();
    let mut add = |metric: &str, size: usize, unit: &str, system: &str, median: f64| {
        let rounds = [median * 0.98, median * 1.02];
        rows.push(json!({ "where": place, "metric": metric, "size": size, "unit": unit, "system": system, "median": median,
                          "p99": if system == "ucx-tcp" { Value::Null } else { json!(median * 1.3) }, "n": 1234, "rounds": rounds }));
    };
    for (at, size) in [8, 64, 1024, 65536].into_iter().enumerate() {
        let slower = 4f64.powi(at as i32);
        add("rtt", size, "ns", "weft", 200.0 * slower * times);
        for (system, rtt) in others.iter().zip([150.0, 2500.0, 300.0]) {
            add("rtt", size, "ns", system, rtt * slower);
        }
        add("bandwidth", size, "B/s", "weft", 1e9 * slower / times);
    }
    add("rate", 16, "1/s", "weft", 5e7 / times);
    for (metric, value) in [("logp.os", 60.0), ("logp.or", 50.0), ("logp.l", -10.0), ("logp.g", 90.0)] {
        add(metric, 16, "ns", "weft", value);
    }
    let machine = json!({ "cpu": "An <odd> CPU & more", "cores": 2, "cpus": [0, 1], "kernel": "6.1", "date": "2026-11-22T10:00:00Z",
                          "weft": "0.1.0", "line": [60.0, 200.0] });
    json!({ "machine": machine, "mtu": 1500, "rows": rows }).to_string()
}

/// Checks a page: it is self-contained and has this many pictures.
fn check(page: &str, pictures: usize) {
    assert_eq!(page.matches("<svg ").count(), pictures);
    assert_eq!(page.matches("</svg>").count(), pictures);
    for foreign in ["<script", "<link", "<img", "@import", "url(", "src=", "href="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    let addresses = page.matches("http").count();
    assert_eq!(
        addresses,
        page.matches("http://www.w3.org/2000/svg").count(),
        "no address but the name of SVG's language"
    );
    for needed in [
        "@media print",
        "prefers-color-scheme: dark",
        "An &lt;odd&gt; CPU &amp; more",
        "2026-11-22T10:00:00Z",
        "<td>1234</td>",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"), "a figure that is none");
}

#[test]
fn one_measurement_becomes_a_page_beside_the_others() {
    let folder = Folder::new("page-of-one");
    for (place, beside) in [("local", "limit (bare C)"), ("hosts", "bare UDP")] {
        let file = folder.write("a.json", &measured(place, 1.0));
        let page = folder.0.join("page.html");
        let told = printed(&weft(&["bench", "report", &file, "-o", page.to_str().expect("text")]));
        assert_eq!(Path::new(told.trim()), std::fs::canonicalize(&page).expect("it is there"));
        let page = std::fs::read_to_string(page).expect("a page");
        assert_eq!(printed(&weft(&["bench", "report", &file, "-o", "-"])), page);
        check(&page, 4);
        // 200 ns beside 150 ns.
        assert!(page.contains(beside) && page.contains("<td>1.33</td>"), "{beside}");
        assert!(page.contains("64 KiB") && page.contains("logarithmic"));
        assert!(
            page.contains("<td>-10.00 ns</td>") || page.contains("<td>-10.0 ns</td>"),
            "what no axis can show is in the table"
        );
        // ... and beside its name in the picture; each picture has an explanation.
        assert_eq!(page.matches(">\nL, on the way\n<").count(), 1);
        assert_eq!(page.matches("<p class=\"faint\">").count(), 5);
        assert!(page.contains("o_s and o_r: how long") && page.contains("p99: 99 of 100 samples"));
    }
}

#[test]
fn a_page_shows_ucx_with_receivers_that_read_and_says_so() {
    let folder = Folder::new("page-of-ucx");
    let page_of = |document: &Value| {
        let file = folder.write("a.json", &document.to_string());
        let page = folder.file("page.html");
        printed(&weft(&["bench", "report", &file, "-o", &page]));
        std::fs::read_to_string(page).expect("a page")
    };
    let mut document: Value = serde_json::from_str(&measured("local", 1.0)).expect("JSON");
    let only_perftest = page_of(&document);
    assert!(only_perftest.contains("UCX is measured with ucx_perftest, whose receivers do not read"));
    assert!(!only_perftest.contains("reading"));
    // With ucx_perftest, 64 B took 1.2 µs.
    let row = json!({ "where": "local", "metric": "rtt", "size": 64, "unit": "ns", "system": "ucx-uct-am", "way": "read",
                      "median": 1776.0, "p99": 1800.0, "n": 9 });
    document["rows"].as_array_mut().expect("a list").push(row);
    let page = page_of(&document);
    assert!(page.contains("So do UCX's where <i>reading</i> stands"));
    let of_64 = page.matches("ucx-uct-am, reading</td><td>1.78 µs</td>").count();
    assert_eq!(of_64, 2, "in the table beneath the picture, and among all figures");
    let plain = "ucx-uct-am</td><td>1.20 µs</td>";
    assert_eq!((only_perftest.matches(plain).count(), page.matches(plain).count()), (2, 1), "among all figures only");
}

/// The output of `weft bench report --markdown` for these files.
fn markdown(files: &[&str]) -> String {
    printed(&weft(&[&["bench", "report", "--markdown"], files].concat()))
}

/// The row of a table that begins with this cell.
fn row<'a>(table: &'a str, what: &str) -> &'a str {
    let begin = format!("| {what} |");
    table.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("no {what}: {table}"))
}

#[test]
fn a_measurement_becomes_a_table_of_markdown_with_its_conditions() {
    let folder = Folder::new("markdown-of-one");
    let local = folder.write("local.json", &measured("local", 1.0));
    let part = markdown(&[&local]);
    let lines: Vec<&str> = part.lines().collect();
    assert_eq!(lines[0], "| what | weft | limit (bare C) | ratio | kernel, best | ratio | UCX, best | ratio |");
    assert_eq!(lines[1], "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let of_64 = "| round trip, 64 B | 800 ns | 600 ns (ring) | 1.33 | 10.0 µs (kpipe-spin) | 0.08 | 1.20 µs (ucx-uct-am) | 0.67 |";
    assert_eq!(row(&part, "round trip, 64 B"), of_64);
    assert_eq!(row(&part, "messages one way, 16 B"), "| messages one way, 16 B | 50.0 M/s | | | | | | |");
    assert_eq!(row(&part, "bytes one way, 64 KiB"), "| bytes one way, 64 KiB | 64.0 GB/s | | | | | | |");
    assert_eq!(lines.len(), 2 + 4 + 1 + 4 + 2, "no row is left out, then an empty line and the conditions: {part}");
    let conditions = lines.last().expect("they are there");
    assert!(conditions.starts_with(
        "2026-11-22, An \\<odd\\> CPU & more, 2 CPUs, Linux 6.1, weft 0.1.0; two processes on CPUs 0 and 1. "
    ));
    assert!(
        conditions.contains("in 60.0 ns to 200 ns") && conditions.contains("a ratio of the medians shown"),
        "{conditions}"
    );
}

#[test]
fn two_measurements_become_two_tables_and_hosts_stand_beside_udp_and_tcp() {
    let folder = Folder::new("markdown-of-two");
    let (local, hosts) =
        (folder.write("a.json", &measured("local", 1.0)), folder.write("b.json", &measured("hosts", 1.0)));
    let both = markdown(&[&local, &hosts]);
    assert_eq!(both, format!("{}\n{}", markdown(&[&local]), markdown(&[&hosts])));
    assert!(both.contains("\n| what | weft | bare UDP | ratio | TCP | ratio | UCX, best | ratio |\n"), "{both}");
    assert!(both.contains("two hosts, MTU 1500"), "{both}");
}

#[test]
fn a_ratio_of_markdown_is_the_median_of_the_rounds_ratios_where_the_file_tells_them() {
    let folder = Folder::new("markdown-of-rounds");
    let mut document: Value = serde_json::from_str(&measured("local", 1.0)).expect("JSON");
    document["rounds"] = json!(3);
    for row in document["rows"].as_array_mut().expect("a list") {
        // The ratios of the rounds are 2, 3 and none; the ratio of the medians is 1.33.
        match (row["metric"].as_str(), row["size"].as_u64(), row["system"].as_str()) {
            (Some("rtt"), Some(64), Some("weft")) => row["medians"] = json!([800.0, 1800.0, 500.0]),
            (Some("rtt"), Some(64), Some("ring")) => row["medians"] = json!([400.0, 600.0, null]),
            _ => {}
        }
    }
    let part = markdown(&[&folder.write("a.json", &document.to_string())]);
    assert!(row(&part, "round trip, 64 B").contains("600 ns (ring) | 2.50 |"), "{part}");
    assert!(
        part.contains("two processes on CPUs 0 and 1, 3 rounds.") && part.contains("the median of the rounds' ratios")
    );
}

#[test]
fn markdown_shows_ucx_with_receivers_that_read_and_says_so() {
    let folder = Folder::new("markdown-of-ucx");
    let mut document: Value = serde_json::from_str(&measured("local", 1.0)).expect("JSON");
    let read = json!({ "where": "local", "metric": "rtt", "size": 64, "unit": "ns", "system": "ucx-uct-am", "way": "read",
                       "median": 1600.0, "p99": 1800.0, "n": 9 });
    document["rows"].as_array_mut().expect("a list").push(read);
    let part = markdown(&[&folder.write("a.json", &document.to_string())]);
    assert!(row(&part, "round trip, 64 B").ends_with("| 1.60 µs (ucx-uct-am, reading) | 0.50 |"), "{part}");
    assert!(part.contains("only where *reading* stands"), "{part}");
}

#[test]
fn markdown_goes_to_standard_output_alone() {
    let folder = Folder::new("markdown-or-page");
    let file = folder.write("a.json", &measured("local", 1.0));
    let output = weft(&["bench", "report", &file, "--markdown", "-o", &folder.file("page.html")]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--markdown") && said.contains("--output"), "{said}");
}

#[test]
fn two_measurements_stand_side_by_side_with_ratios() {
    let folder = Folder::new("page-of-two");
    let (a, b) = (folder.write("a.json", &measured("local", 1.0)), folder.write("b.json", &measured("local", 1.5)));
    let page = folder.0.join("page.html");
    printed(&weft(&["bench", "report", &a, &b, "--output", page.to_str().expect("text")]));
    let page = std::fs::read_to_string(page).expect("a page");
    check(&page, 8);
    assert!(page.contains("B ÷ A") && page.contains("<td>1.50</td>"));
}

#[test]
fn what_is_no_measurement_is_refused_with_the_way_out() {
    let folder = Folder::new("no-page");
    let empty = folder.write("empty.json", &measured("local", 1.0).replace("\"rows\"", "\"lines\""));
    let text = folder.write("text.json", "no JSON");
    for file in [empty.as_str(), text.as_str(), "/nonexistent/a.json"] {
        for command in [
            &["bench", "report", file][..],
            &["bench", "report", file, "--markdown"],
            &["bench", "compare", file, file],
        ] {
            let output = weft(command);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
            assert!(said.contains(file) && said.contains("--json FILE"), "{command:?}: {said}");
        }
    }
    let file = folder.write("a.json", &measured("local", 1.0));
    let output = weft(&["bench", "report", &file, "-o", "/nonexistent/page.html"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--output FILE"));
}

#[test]
fn what_moved_beyond_noise_is_told_and_nothing_else() {
    let folder = Folder::new("compare");
    let (old, new) =
        (folder.write("old.json", &measured("local", 1.0)), folder.write("new.json", &measured("local", 1.5)));
    // L is below 0 in both measurements: it has no ratio.
    assert!(printed(&weft(&["bench", "compare", &old, &old])).contains("0 of 24 figures moved beyond noise"));
    let words = printed(&weft(&["bench", "compare", &old, &new]));
    assert!(
        words.contains("9 of 24 figures moved beyond noise") && words.contains("WORSE") && !words.contains("better"),
        "{words}"
    );
    assert!(printed(&weft(&["bench", "compare", &new, &old])).contains("better"));
    let document: Value =
        serde_json::from_str(&printed(&weft(&["bench", "compare", &old, &new, "--json"]))).expect("JSON alone");
    let worse =
        document["changes"].as_array().expect("a list").iter().filter(|change| change["verdict"] == "worse").count();
    assert_eq!(worse, 9);
}
