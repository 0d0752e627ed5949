"""All that a reader does in the dashboard, by the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page
from tests.dashboard.conftest import Board, Visit, fill_jobs
from tests.support.server import Server

STOPS_MAX = 80


def focus(page: Page, name: str) -> None:
    """Press Tab until the element with this text, or for this label, has the focus, and can be
    seen to have it."""
    for _ in range(STOPS_MAX):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => {
                const at = document.activeElement;
                const style = getComputedStyle(at);
                return [(at.labels?.[0] ?? at).textContent.trim(), style.outlineStyle !== 'none'];
            }"""
        )
        if found[0].startswith(name):
            assert found[1], f"{name} does not show that it has the focus"
            return
    raise AssertionError(f"Tab does not reach {name}")


def press(page: Page, name: str) -> None:
    focus(page, name)
    page.keyboard.press("Enter")


def test_keyboard_reaches_the_content_and_the_streams(
    board: Board, visit: Callable[..., Visit]
) -> None:
    page = visit().page
    page.goto(board.address + "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    press(page, "orders")
    page.wait_for_url("**/stream?*key=orders")


def test_a_group_is_claimed_trimmed_and_deleted(
    ours: Server, new_board: Callable[..., Board], visit: Callable[..., Visit]
) -> None:
    board = new_board(ours, "--actions")
    page = visit().page
    with ours.client() as client:
        fill_jobs(client)
        page.goto(board.address + "/")
        press(page, "jobs")
        page.wait_for_url("**/stream?*")
        press(page, "g")
        page.wait_for_url("**/group?*")
        press(page, "Claim")
        page.wait_for_url("**/group/claim?*")
        focus(page, "The consumer that gets them")
        page.keyboard.type("b")
        press(page, "Claim")
        page.get_by_text("4 entries were claimed").wait_for()
        press(page, "Delete ...")
        page.wait_for_url("**/group/delete?*")
        press(page, "Cancel")
        page.wait_for_url("**/group?*")
        press(page, "Delete ...")
        page.wait_for_url("**/group/delete?*")
        press(page, "Delete the group")
        page.get_by_text("The group was deleted").wait_for()
        press(page, "Trim ...")
        page.wait_for_url("**/stream/trim?*")
        focus(page, "Entries to keep")
        page.keyboard.press("Control+a")
        page.keyboard.type("3")
        page.keyboard.press("Enter")
        page.get_by_text("7 entries were removed").wait_for()
        press(page, "Delete ...")
        page.wait_for_url("**/stream/delete?*")
        press(page, "Delete the stream")
        page.get_by_text("The stream was deleted").wait_for()
        assert client.call("EXISTS", "jobs") == 0
