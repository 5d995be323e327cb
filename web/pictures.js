// Pictures for a model that sees: from a file or the camera, made small enough for the call's event channel.

const LARGEST_SIDE = 1024;
const SMALLEST_SIDE = 256;
const ROOM = 1024; // bytes of an event around the picture

/** Resolves to a JPEG as a data URL of at most `limit` characters. Rejects with an Error for people to read. */
export async function shrink(source, limit) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(source);
  } catch {
    throw new Error("This is no picture that the browser can read.");
  }
  const canvas = document.createElement("canvas");
  for (let side = LARGEST_SIDE; side >= SMALLEST_SIDE; side = Math.floor(side * 0.8)) {
    const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff"; // behind what is transparent: JPEG has no such thing
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    for (const quality of [0.85, 0.7, 0.5]) {
      const url = canvas.toDataURL("image/jpeg", quality);
      if (url.length + ROOM <= limit) return url;
    }
  }
  throw new Error("This picture can't be made small enough.");
}

/** The dialog with the camera. Calls `onpicture` with what it saw (an ImageBitmap). */
export class Camera {
  #dialog;
  #video;
  #shutter;
  #stream = null;
  onpicture = () => {};

  constructor(dialog) {
    this.#dialog = dialog;
    this.#video = dialog.querySelector("video");
    this.#shutter = dialog.querySelector("[data-take]");
    this.#shutter.addEventListener("click", () => this.#take());
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => this.#stop());
  }

  /** Rejects with an Error for people to read. */
  async open() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("This browser gives no camera to this page. Open it over https, or on the server's own machine as localhost.");
    }
    try {
      this.#stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      const messages = {
        NotAllowedError: "The camera is blocked. Allow it for this page in the browser's settings.",
        NotFoundError: "No camera was found. Choose a picture instead.",
        NotReadableError: "The camera is in use by another program.",
      };
      throw new Error(messages[error.name] ?? `The camera can't be used: ${error.message}`);
    }
    this.#video.srcObject = this.#stream;
    this.#dialog.showModal();
    await this.#video.play();
    this.#shutter.disabled = false;
  }

  async #take() {
    const picture = await createImageBitmap(this.#video);
    this.#dialog.close();
    this.onpicture(picture);
  }

  #stop() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = this.#video.srcObject = null;
    this.#shutter.disabled = true;
  }
}
