"""A person at the page, in a real Chromium."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitgate.gates import sshsig
from bitgate.gates.table import BY_ID

pytestmark = pytest.mark.browser

HOSTILE = '</bdi><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">\u202eevil'
PLOT = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82"
)


@pytest.fixture
def visit(browser: Any, serve: Any) -> Iterator[Any]:
    """Opens the page in a context of its own; what a script or the console complained about fails the test."""
    contexts, complaints = [], []

    def go(served: Any, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.goto(served.url)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def awaiting(world: Any) -> Any:
    world.walk("C0")
    world.meet_gate("C1")
    world.propose(note="tuned on the maths workload")
    world.submit("C1")
    return world


def sign(page: Any, world: Any, key: str = "rosa", folder: Path | None = None) -> None:
    """Downloads what is to be signed, signs it where the key is, and hands the signature in."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=re.compile("Download")).click()
    message = Path(waiting.value.path()).read_text(encoding="utf-8")
    page.get_by_label("or its text").fill(sshsig.sign(message, world.keys[key]))
    page.get_by_role("button", name="Hand in the signature").click()


def at(served: Any, path: str) -> str:
    return served.base + path


def test_the_board_shows_every_gate_in_order_with_state_and_what_blocks_it(visit, serve, awaiting):
    page = visit(serve())
    rows = page.locator("table.board tbody tr")
    assert rows.count() == 11
    assert rows.locator("th .id").all_inner_texts() == [f"C{n}" for n in range(11)]
    assert "awaiting" in rows.nth(1).inner_text() and "signature" in rows.nth(1).inner_text()
    assert "After C2" in rows.nth(3).inner_text()


def test_a_person_approves_by_handing_in_a_signature(visit, serve, awaiting):
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Approve").check()
    page.get_by_role("button", name="Continue to the signature").click()
    sign(page, awaiting)
    page.wait_for_url(re.compile("/gates/C1"))
    assert awaiting.state("C1") == "passed"
    assert page.locator("h1 .pill").inner_text().strip().endswith("passed")
    assert "rosa" in page.locator("table.votes").inner_text()


def test_a_person_signs_at_once_when_the_page_has_a_key(visit, serve, awaiting):
    served = serve(key=awaiting.keys["sam"])
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Approve").check()
    page.get_by_role("button", name="Continue to the signature").click()
    page.get_by_role("button", name="Sign: approve C1").click()
    page.wait_for_url(re.compile("/gates/C1"))
    assert [shown.vote.signer for shown in awaiting.board["C1"].votes] == ["sam"]


def test_a_person_rejects_with_a_reason(visit, serve, awaiting):
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Reject").check()
    page.get_by_label(re.compile("^Reason")).fill("two knobs are not a tuning record")
    page.get_by_role("button", name="Continue to the signature").click()
    sign(page, awaiting)
    page.wait_for_url(re.compile("/gates/C1"))
    assert awaiting.state("C1") == "failed"
    assert "two knobs are not a tuning record" in page.locator("main").inner_text()


def test_a_rejection_without_a_reason_is_sent_back(visit, serve, awaiting):
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Reject").check()
    page.get_by_role("button", name="Continue to the signature").click()
    assert "needs one" in page.get_by_role("alert").inner_text()
    assert awaiting.board["C1"].votes == ()


def test_a_waiver_names_what_it_waives(visit, serve, world):
    world.walk("C0")
    world.today = replace(world.today, policy=replace(world.today.policy, updates_per_step=4))
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C0"))
    page.get_by_role("radio", name="Waive what is missing").check()
    page.get_by_label("one update a step").check()
    page.get_by_label(re.compile("^Reason")).fill("the maths task needs four")
    page.get_by_role("button", name="Continue to the signature").click()
    sign(page, world)
    page.wait_for_url(re.compile("/gates/C0"))
    assert [item.key for item, _ in world.board["C0"].waived] == ["one_update_a_step"]


def test_a_wrong_key_is_refused_and_nothing_is_recorded(visit, serve, awaiting):
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Approve").check()
    page.get_by_role("button", name="Continue to the signature").click()
    sign(page, awaiting, "mallory")
    assert "none of the reviewers" in page.get_by_role("alert").inner_text()
    assert awaiting.board["C1"].votes == ()


def test_a_decision_that_was_overtaken_is_refused_as_outdated(visit, serve, awaiting):
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Approve").check()
    page.get_by_role("button", name="Continue to the signature").click()
    awaiting.propose(note="another one, meanwhile")
    sign(page, awaiting)
    assert "outdated" in page.get_by_role("alert").inner_text()


def test_a_vote_on_what_has_changed_is_shown_as_outdated(visit, serve, awaiting):
    awaiting.vote("C1")
    awaiting.changed(baseline=awaiting.side("baseline", options={"batch_invariant": True}))
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    assert "outdated" in page.locator("table.votes").inner_text()
    assert "side baseline: option batch_invariant false -> true" in page.locator("main").inner_text()


def test_a_used_link_shows_nothing(visit, serve, awaiting, browser):
    served = serve()
    visit(served)
    other = browser.new_context()
    page = other.new_page()
    page.goto(served.url)
    assert "was used" in page.get_by_role("alert").inner_text()
    assert page.locator("table").count() == 0
    other.close()


def test_an_old_link_shows_nothing(visit, serve):
    now = [0.0]
    served = serve(clock=lambda: now[0])
    now[0] = 601.0
    page = visit(served)
    assert "older than ten minutes" in page.get_by_role("alert").inner_text()


def test_a_form_on_another_page_cannot_act_here(visit, serve, awaiting, tmp_path):
    """The person is logged in here and looks at a hostile page in the same browser."""
    served, hostile = serve(), serve()
    page = visit(served)
    page.route(
        hostile.base + "/**",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<form method=post action="{served.base}/gates/C1/prepare">'
            "<input name=choice value=approve><button>go</button></form>",
        ),
    )
    page.goto(hostile.base + "/trap")
    page.get_by_role("button").click()
    page.wait_for_url(re.compile("/prepare"))
    assert page.locator("main.refused").count() == 1
    assert awaiting.board["C1"].votes == ()


def test_hostile_text_in_evidence_stays_text(visit, serve, world):
    world.meet(
        BY_ID["C0"].needs[0],
        summary=HOSTILE,
        next=HOSTILE,
        reasons=[{"code": "x", "detail": HOSTILE}],
        figures={HOSTILE: HOSTILE},
    )
    served = serve()
    page = visit(served)
    for path in ("/", "/gates/C0", "/evidence"):
        page.goto(at(served, path))
        assert "owned" not in page.title()
        assert page.locator("main img, main script").count() == 0
        assert "\u202e" not in page.content()
    page.goto(at(served, "/gates/C0"))
    assert "\\u202eevil" in page.locator("main").inner_text()


def test_ten_megabytes_of_text_are_cut_and_the_page_stays_small(visit, serve, world):
    evidence = world.meet(BY_ID["C0"].needs[0], figures={"text": "A" * 10_000_000})
    served = serve()
    page = visit(served)
    page.goto(at(served, f"/evidence/{evidence.id}"))
    assert len(page.content()) < 100_000
    assert "10,000,000 characters" in page.locator("main").inner_text()


def test_right_to_left_text_does_not_turn_the_page_around(visit, serve, world):
    evidence = world.meet(BY_ID["C0"].needs[0], summary="\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 pass")
    served = serve()
    page = visit(served)
    page.goto(at(served, f"/evidence/{evidence.id}"))
    assert page.evaluate("getComputedStyle(document.querySelector('main')).direction") == "ltr"
    assert page.locator("p.lead bdi").inner_text() == "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 pass"


def test_a_plot_is_shown_and_a_disguised_one_is_not(visit, serve, world):
    good = world.store.artifacts.put_bytes(PLOT, name="mismatches.png", media_type="image/png")
    bad = world.store.artifacts.put_bytes(b"<svg onload=alert(1)>", name="x.png", media_type="image/png")
    evidence = world.meet(BY_ID["C0"].needs[0], artifacts=(good, bad))
    served = serve()
    page = visit(served)
    page.goto(at(served, f"/evidence/{evidence.id}"))
    page.locator("img").first.scroll_into_view_if_needed()
    page.wait_for_function("document.images[0].complete")
    assert page.evaluate("[...document.images].map(i => i.naturalWidth)")[0] == 1
    assert page.request.get(at(served, f"/evidence/{evidence.id}/plots/{bad.digest}")).status == 404
    answer = page.request.get(at(served, f"/evidence/{evidence.id}/artifacts/{bad.digest}"))
    assert (
        answer.headers["content-disposition"].startswith("attachment")
        and answer.headers["content-type"] == "application/octet-stream"
    )


def test_it_works_without_scripts(visit, serve, awaiting):
    served = serve()
    page = visit(served, java_script_enabled=False)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Approve").check()
    page.get_by_role("button", name="Continue to the signature").click()
    sign(page, awaiting)
    page.wait_for_url(re.compile("/gates/C1"))
    assert awaiting.state("C1") == "passed"


def test_a_keyboard_alone_reaches_the_decision(visit, serve, awaiting):
    served = serve()
    page = visit(served)
    page.goto(at(served, "/gates/C1"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.get_by_role("radio", name="Approve").focus()
    page.keyboard.press("Space")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Continue to the signature":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/prepare"))


AUDIT = """() => {
  const found = [];
  for (const e of document.querySelectorAll('img')) if (!e.alt) found.push('img without alt');
  for (const e of document.querySelectorAll('input:not([type=hidden]), textarea:not([hidden])'))
    if (!e.labels || !e.labels.length) found.push('unlabelled ' + e.name);
  for (const e of document.querySelectorAll('table')) if (!e.caption) found.push('table without caption');
  for (const e of document.querySelectorAll('a, button'))
    if (!e.hidden && !e.textContent.trim()) found.push('empty ' + e.tagName);
  if (document.querySelectorAll('h1').length !== 1) found.push('h1');
  if (document.querySelectorAll('main').length !== 1) found.push('main');
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  if (new Set(ids).size !== ids.length) found.push('duplicate ids');
  if (!document.documentElement.lang) found.push('lang');
  let last = 0;
  for (const h of document.querySelectorAll('h1, h2, h3, h4')) {
    const level = +h.tagName[1];
    if (level > last + 2) found.push('heading jump at ' + h.textContent);
    last = level;
  }
  return found;
}"""

CONTRAST = """() => {
  const rgb = s => s.match(/[\\d.]+/g).map(Number);
  const part = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const lum = c => { const f = c.slice(0, 3).map(v => part(v / 255));
    return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
  const back = e => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll('main *, header *, footer *')) {
    const spoken = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!spoken || !e.getClientRects().length || e.closest('svg')) continue;
    const a = lum(rgb(getComputedStyle(e).color)), b = lum(back(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) low.push(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2));
  }
  return low;
}"""

PAGES = ("/", "/gates/C1", "/gates/C6", "/baseline", "/evidence", "/runs", "/chain")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_labelled_and_readable_in_light_and_dark(visit, serve, awaiting, scheme):
    awaiting.vote("C1", "reject", "not yet")
    served = serve()
    page = visit(served, color_scheme=scheme)
    for path in PAGES:
        page.goto(at(served, path))
        assert page.evaluate(AUDIT) == [], path
        assert page.evaluate(CONTRAST) == [], path


def test_a_narrow_screen_does_not_scroll_sideways(visit, serve, awaiting):
    served = serve()
    page = visit(served, viewport={"width": 375, "height": 800})
    for path in PAGES[:4]:
        page.goto(at(served, path))
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path


def test_every_page_carries_the_chains_state(visit, serve, awaiting):
    served = serve()
    page = visit(served)
    page.goto(at(served, "/chain"))
    page.goto(at(served, "/"))
    assert "chain verifies" in page.locator("footer").inner_text()


def test_a_ledger_that_lies_says_so_on_every_page(visit, serve, awaiting):
    awaiting.store.append("token", "x", {}, "person:x")
    served = serve()
    page = visit(served)
    page.goto(at(served, "/chain"))
    assert "lies" in page.locator("h1").inner_text()
    page.goto(at(served, "/"))
    assert "the chain lies" in page.locator("footer").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots(visit, serve, world, scheme):
    """Pictures for a person to look at, kept where BITGATE_SCREENSHOTS says."""
    folder = os.environ.get("BITGATE_SCREENSHOTS")
    world.walk("C5")
    world.meet(
        BY_ID["C6"].needs[3],
        verdict="fail",
        summary="12 of 4096 rows differ; worst is 'packed'",
        reasons=[{"code": "logprobs_differ", "detail": "sequence 3, position 17: 1 ulp"}],
    )
    world.submit("C6")
    served = serve(key=world.keys["rosa"])
    page = visit(served, color_scheme=scheme, viewport={"width": 1200, "height": 900})
    page.goto(at(served, "/chain"))
    for name, path in {
        "board": "/",
        "gate": "/gates/C5",
        "failed": "/gates/C6",
        "baseline": "/baseline",
        "chain": "/chain",
        "evidence": "/evidence",
    }.items():
        page.goto(at(served, path))
        assert page.locator("h1").count() == 1
        if folder:
            page.screenshot(path=f"{folder}/{name}-{scheme}.png", full_page=True)
    page.goto(at(served, "/gates/C1"))
    page.get_by_role("radio", name="Reject").check()
    page.get_by_label(re.compile("^Reason")).fill("the tuning record has two knobs")
    page.get_by_role("button", name="Continue to the signature").click()
    if folder:
        page.screenshot(path=f"{folder}/sign-{scheme}.png", full_page=True)
