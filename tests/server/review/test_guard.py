"""Who gets in: through the link, once, from this machine, and no other page in this browser's name."""

from __future__ import annotations

import httpx2
import pytest

from bitgate.gates import sshsig
from bitgate.gates.decisions import decision_for
from bitgate.gates.rows import pretty
from bitgate.server.review.guard import CSP, LINK_SECONDS, SESSION_SECONDS, Door

PATHS = ("/", "/gates/C1", "/baseline", "/evidence", "/runs", "/chain", "/report")


@pytest.mark.parametrize("path", [*PATHS, "/gates/C1/statement", "/evidence/ev_x", "/runs/run_x", "/nothing"])
@pytest.mark.attack
def test_nothing_is_shown_without_a_session(served, path):
    answer = httpx2.get(served.base + path)
    assert answer.status_code == 401
    assert "bitgate review" in answer.text and "C1" not in answer.text


@pytest.mark.attack
def test_the_link_works_once(served):
    served.client()
    again = httpx2.get(served.url)
    assert again.status_code == 401 and "was used" in again.text


@pytest.mark.parametrize("token", ["", "x", "token" * 9])
@pytest.mark.attack
def test_a_wrong_token_opens_nothing_and_does_not_use_up_the_right_one(served, token):
    assert httpx2.get(f"{served.base}/enter?token={token}").status_code == 401
    assert httpx2.get(served.url).status_code == 303


@pytest.mark.attack
def test_an_old_link_is_refused(serve):
    now = [0.0]
    served = serve(clock=lambda: now[0])
    now[0] = LINK_SECONDS + 1
    assert httpx2.get(served.url).status_code == 401


def test_a_session_ends():
    now = [0.0]
    door = Door(frozenset({"x"}), lambda: now[0])
    session = door.enter(door.link)
    assert session and door.csrf(session)
    now[0] = SESSION_SECONDS + 1
    assert door.csrf(session) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "localhost", "127.0.0.1:1", "[::1]", "127.0.0.1.evil.example"]
)
@pytest.mark.attack
def test_another_host_name_is_refused_even_with_a_session(served, host):
    client = served.client()
    assert client.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("path", PATHS)
def test_every_page_says_what_it_may_load_and_is_not_kept(served, path):
    headers = served.client().get(path).headers
    assert headers["content-security-policy"] == CSP
    assert headers["cache-control"] == "no-store"
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_the_policy_allows_no_inline_script_style_or_other_host():
    assert "unsafe" not in CSP and "http" not in CSP and "*" not in CSP and CSP.startswith("default-src 'none'")


def test_the_session_cookie_is_for_this_page_alone(served):
    answer = httpx2.get(served.url)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie


def form(served, client, **changes):
    text = client.get("/gates/C0").text
    token = text.partition('name="csrf" value="')[2].partition('"')[0]
    return {"csrf": token, "choice": "reject", "reason": "because", **changes}


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, "site"],
)
@pytest.mark.attack
def test_a_form_from_another_page_is_refused(served, headers):
    client = served.client()
    if headers == "site":
        headers = {"Origin": served.base, "Sec-Fetch-Site": "cross-site"}
    answer = client.post("/gates/C0/prepare", data=form(served, client), headers=headers)
    assert answer.status_code == 403


@pytest.mark.parametrize("csrf", ["", "x", "0" * 43])
@pytest.mark.attack
def test_a_form_without_its_token_is_refused(served, csrf):
    client = served.client()
    answer = client.post("/gates/C0/prepare", data=form(served, client, csrf=csrf), headers={"Origin": served.base})
    assert answer.status_code == 403 and "nothing was done" in answer.text


@pytest.mark.attack
def test_a_form_that_is_too_large_is_refused(served):
    client = served.client()
    answer = client.post(
        "/gates/C0/prepare", data=form(served, client, reason="x" * 3_000_000), headers={"Origin": served.base}
    )
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/..%2fguard.py",
        "/static/%2e%2e/app.py",
        "/static/page.html",
        "/evidence/..%2f..%2fetc%2fpasswd",
        "/runs/..%2f..",
        "/gates/C11",
        "/gates/%2e%2e",
    ],
)
@pytest.mark.attack
def test_no_path_leads_out(served, path):
    answer = served.client().get(path)
    assert answer.status_code in {404, 405}
    assert "root:" not in answer.text and "class Guard" not in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.attack
def test_other_methods_do_nothing(served, method):
    client = served.client()
    assert client.request(method, "/gates/C0", headers={"Origin": served.base}).status_code == 405


@pytest.mark.attack
def test_getting_a_signing_address_does_nothing(served):
    assert served.client().get("/gates/C0/sign").status_code == 405


def test_a_whole_decision_over_plain_forms(served, ssh_keys):
    """Without any script: prepare, download, sign elsewhere, hand in."""
    client, origin = served.client(), {"Origin": served.base}
    shown = client.post("/gates/C0/prepare", data=form(served, client), headers=origin)
    assert shown.status_code == 200 and "Sign: reject C0" in shown.text
    decision = decision_for(served.world.store, "C0", served.world.today, "reject", "because")
    data = {"csrf": form(served, client)["csrf"], "decision": pretty(decision)}
    bundle = client.post("/gates/C0/bundle", data=data, headers=origin)
    assert bundle.text == pretty(decision) and "attachment" in bundle.headers["content-disposition"]
    signature = sshsig.sign(bundle.text, ssh_keys["rosa"])
    done = client.post("/gates/C0/sign", data={**data, "signature": signature}, headers=origin)
    assert done.status_code == 303
    assert served.world.state("C0") == "failed"
